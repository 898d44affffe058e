"""Clocks fitted to published runs, and the cross-validation beside them."""
