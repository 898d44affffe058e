"""How the work is split, scheduled, sharded and stored.

``plan`` says what follows from ``plan_fields``, which hold ``plan_blocks``, a framework's
``stack`` (``expert_facts`` and ``narrow_product_facts`` are parts of it, ``stack_options`` what it
chooses between, ``shipped_stacks`` those that are known) and a layout of layers (``layout_text``);
``fused_attention`` says which heads one kernel takes.
"""
