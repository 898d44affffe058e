"""Which plans of a job are the fastest that fit, proven?

:mod:`.space` lists the valid plans, :mod:`.bound` proves how fast and how small each can be at
best (from :mod:`.plan_costs`), and :mod:`.search` skips those that cannot win and simulates the
rest. :mod:`.best_plans` searches for several jobs, and ranks plans of several searches.
"""
