"""Kernels of one device.

Which (``kernel_cases``), measured (``measure_kernels``), fitted (``fit_kernels``), as a
profile.
"""
