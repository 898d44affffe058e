"""Clocks fitted to published runs; kernels and networks fitted to measured rows."""
