"""Drawings of machines.

system         a node, and the network between nodes; ``diagram`` has their boxes and lines
placement      which GPU holds which rank
chunk_steps    which rank holds which chunk during a collective
"""
