"""How the work is split, scheduled, sharded and stored.

``plan`` holds ``plan_blocks``, a framework's ``stack`` (``stack_options`` are what it chooses
between, ``shipped_stacks`` those that are known) and a layout of layers (``layout_text``);
``fused_attention`` says which heads one kernel takes.
"""
