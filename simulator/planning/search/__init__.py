"""Which plans of a job are the fastest that fit, proven?

:mod:`.space` lists the valid plans, :mod:`.bound` proves how fast and how small each can be at
best (from :mod:`.plan_costs` and :mod:`.least_exchanges`), :mod:`.plan_trial` simulates one of
them, and :mod:`.search` skips what its bounds exclude and tries those of the :mod:`.candidates`
that may win. :mod:`.best_plans` searches for several jobs, and ranks plans of several searches;
:mod:`.sized_jobs` are those with other global batches or numbers of GPUs.
"""
