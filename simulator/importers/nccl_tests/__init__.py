"""Measured collectives of nccl-tests and rccl-tests.

``nccl_tests_output`` reads text or JSON into ``measured_collective`` rows.
"""
