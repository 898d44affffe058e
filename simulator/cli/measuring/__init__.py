"""Commands that measure, or hold predictions against measurements.

calibrating, calibrating_gpu    profiles from collectives and from kernels
calibrating_runs                profiles from measured training steps
validating, validating_torch    tables of measurements; real torch runs
"""
