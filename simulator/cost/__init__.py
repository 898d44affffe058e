"""FLOP, bytes and seconds of one thing alone; parameters of a device come from its profile.

gemm, attention    matrix products and fused attention
kernel_time        the door to gemm, attention and rates
rates              peaks, memory bandwidth and number formats
host               copies to the host and its drives, updates on CPUs
interference       computing beside communication
collectives/       exchanges between ranks
"""
