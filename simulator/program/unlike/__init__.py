"""Ranks of one stage that differ.

In which ``conditions``, for which ``causes``; ``unfold`` makes a class of each kind.
"""
