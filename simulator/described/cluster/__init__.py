"""The machine.

``hardware`` (a profile), its ``network`` and ``fabrics``, its kernels, what is slower than it
should be.
"""
