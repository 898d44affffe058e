"""Seconds and bytes: ``piece_time``, ``layer_time``, ``layer_cost``, ``stage_cost``."""
