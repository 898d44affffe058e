"""Kernels of one device.

kernel_case, kernel_cases        one thing to measure, and the list of them
kernel_calls, system_calls       what torch runs for each; starts, copies, load, sensors
measure_kernels, device_facts    the measurement, and the state of the device meanwhile
raw_file                         measurements that were made elsewhere, without this package
traced_kernels                   kernels of a trace of a real step, as rows to fit to
fit_kernels, kernel_profile      parameters of kernels, and the profile they make
"""
