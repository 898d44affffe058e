"""Collectives of a cluster.

Measured or read from logs, and the link parameters fitted to them.
"""
