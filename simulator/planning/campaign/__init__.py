"""A whole training run.

Days, money (``ownership``), energy, failures and the share of time that counts (``goodput``).
"""
