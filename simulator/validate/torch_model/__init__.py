"""The torch model of a job, for one rank.

Split, sharded, staged, computing in 8 bits, or sleeping instead.
"""
