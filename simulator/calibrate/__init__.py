"""A profile of one's own, made of measurements.

gpu/            kernels of one device
network/        collectives of a cluster
profile_text    numbers written into a profile's YAML
"""
