"""Passes that rewrite a layer.

Tensor, grid, context and expert parallelism, recomputation, split backward.
"""
