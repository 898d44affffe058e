"""Measured rows in tables, as people keep them.

Kernels, collectives; spellings of GPUs, types and frameworks.
"""
