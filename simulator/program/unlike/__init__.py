"""Ranks of one stage that differ.

conditions    in which condition each rank is
causes        why a class behaves in its own way
unfold        colour refinement: one class for all ranks that behave the same
"""
