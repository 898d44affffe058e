"""Measured collectives of nccl-tests and rccl-tests.

``any_format`` reads text or JSON into ``measured_collective`` rows.
"""
