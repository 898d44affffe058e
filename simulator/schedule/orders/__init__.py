"""The pipeline orders, and tools to write them with.

fill_drain, one_f_one_b, zero_bubble, v_shape, two_ends, varuna    one family each
zero_bubble_search    the order that fills the bubbles of given passes
order_tools           orders from a pattern, or from a rule that free ranks follow

A new order is named in ``schedule/registry.py``.
"""
