"""Which questions reach beyond one step?

- ``nearest_fit``: which change makes a job fit into memory?
- ``misfit``: why does it not fit, in words?
- ``sweep``: how does a job fare over a grid of changes? Helped by ``tasks`` (workers that may
  die), ``journal`` (going on after a kill) and ``dask_cluster`` (somebody else's workers).
- ``search``: which plan is the fastest of all that fit? Over a ``space`` of plans, pruned by
  a ``bound``; ``feasible`` says what nobody runs.
- ``balance``: which layers should each pipeline stage hold?
"""
