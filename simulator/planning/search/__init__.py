"""Which plans of a job are the fastest that fit, proven?

:mod:`.space` lists the valid plans, :mod:`.plan_costs` and :mod:`.bound` say how fast and how
small each can be at best, and :mod:`.search` simulates those that may win.
"""
