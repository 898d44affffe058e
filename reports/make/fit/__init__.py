"""Clocks fitted to published runs with their cross-validation; kernels and networks to measured rows."""
