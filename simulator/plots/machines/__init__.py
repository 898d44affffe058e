"""Drawings of systems, of ranks placed on them, and of collectives moving over them."""
