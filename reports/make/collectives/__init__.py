"""Collectives, and computing beside them, against what others measured."""
