"""Ranks of one stage that differ.

conditions    in which condition each rank is
causes        why a class behaves in its own way
unfold        splits the one class of a stage into as few as behave in their own way
"""
