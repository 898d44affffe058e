"""Questions above one step.

:mod:`.search` finds the fastest plan, :mod:`.changes` tries single changes of a job,
:mod:`.sweep` a grid of them, :mod:`.campaign` lays a whole training run. ``limits`` finds the
largest sizes that fit.
"""
