"""Kernels of one device.

kernel_cases, kernel_calls       which kernels are measured, and what torch runs for each
measure_kernels, device_facts    the measurement, and the state of the device meanwhile
fit_kernels, kernel_profile      parameters of kernels, and the profile they make
"""
