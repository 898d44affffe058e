"""Measured rows in tables, as people keep them.

``cells`` reads tables, ``spellings`` knows their words; kernels and collectives have rows of their
own.
"""
