"""Commands that measure, or hold predictions against measurements.

calibrating                     profiles from measured training steps and collectives
calibrating_gpu                 profiles from kernels
validating, validating_torch    tables of measurements; real torch runs
"""
