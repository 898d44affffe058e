"""Program -> Timeline.

``des`` simulates streams and shared links on SimPy, ``replay`` is the bound without contention.
"""
