"""FLOP, bytes and seconds of one thing alone; parameters of a device come from its profile.

kernel_time        time of any kernel, which others ask: measured, by gemm, attention or rates
gemm, attention    formulas of matrix products and of fused attention
rates              peaks, memory bandwidth and number formats
host               copies to the host and its drives, updates on CPUs
interference       by how much communication slows computing; the engine applies it
collectives/       exchanges between ranks
"""
