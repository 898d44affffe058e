"""Ranks of one stage that differ.

conditions    in which condition each rank is
causes        why a class behaves in its own way
unfold        which ranks are simulated once: splits a stage into as few classes as behave alike
"""
