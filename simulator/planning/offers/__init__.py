"""Which of these offers to rent?

:mod:`.offers_file` is what the user writes, :mod:`.offer_results` takes every workload to every
offer under its own fastest plan, :mod:`.choice` picks and says why, :mod:`.rental` shows it.
"""
