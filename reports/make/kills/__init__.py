"""Commands are killed at random moments: what is lost, what is left over, and do they go on?

:mod:`.killed_commands` are what is run, :mod:`.trials` kills one of them and runs it again,
:mod:`.dying` is a process that kills itself between two writes, :mod:`.dask_trials` kill parts of
a cluster, :mod:`.starts` starts two sweeps at once, and :mod:`.kills_page` writes the page.
"""
