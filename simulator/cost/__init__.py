"""FLOP, bytes and seconds of one thing alone; parameters of a device come from its profile.

gemm, attention    matrix products and fused attention
kernel_time        time of any kernel, by gemm, attention or rates
rates              peaks, memory bandwidth and number formats
host               copies to the host and its drives, updates on CPUs
interference       by how much communication slows computing; the engine applies it
collectives/       exchanges between ranks
"""
