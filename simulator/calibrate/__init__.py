"""A profile of one's own, made of measurements.

gpu/            kernels of one device
network/        collectives of a cluster
own_system      training steps of a system
profile_text    numbers written into a profile's YAML
"""
