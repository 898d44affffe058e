"""The machine.

``hardware`` (a profile), its ``network``, its kernels, and numbers of every system (``common``).
"""
