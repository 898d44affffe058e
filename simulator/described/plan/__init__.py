"""How the work is split, scheduled, sharded and stored.

``plan`` holds ``plan_blocks``, a framework's ``stack`` and a layout of layers (``layout_text``).
"""
