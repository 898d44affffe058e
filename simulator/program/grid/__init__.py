"""Which rank is where.

The groups of ranks, the links that they cross, the layers of each pipeline stage.
"""
