"""Real torch processes.

launch    one process per rank, on this machine's loopback or on links of a given rate
world     which ranks there are, on which device, over which library
"""
