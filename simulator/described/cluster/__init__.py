"""The machine.

``hardware`` (a profile), its ``network``, its kernels, what is slower than it should be.
"""
