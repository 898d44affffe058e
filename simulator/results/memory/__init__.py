"""Who holds how much, when.

Tensors by owner (``owners``), the ``allocator``'s reserve, the host's memory.
"""
