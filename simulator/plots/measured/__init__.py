"""Measurements beside predictions.

Kernels, collectives, and a real step below the simulated one.
"""
