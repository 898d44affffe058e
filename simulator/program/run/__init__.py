"""A step in order.

``order``, ``pipeline``, ``data_parallel``, ``step_end``, and what is offloaded meanwhile.
"""
