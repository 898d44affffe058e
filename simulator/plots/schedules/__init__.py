"""Drawings of pipeline orders.

One (``schedule``) or several on one time axis (``schedule_comparison``).
"""
