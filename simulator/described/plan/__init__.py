"""How the work is split, scheduled, sharded and stored.

``plan``; its framework is a ``stack``, ``stacks`` are shipped.
"""
