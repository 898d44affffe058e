"""Which questions reach beyond one step?

- ``nearest_fit``: which change makes a job fit into memory?
- ``misfit``: why does it not fit, in words?
- ``sweep``: how does a job fare over a grid of changes?
- ``balance``: which layers should each pipeline stage hold?
"""
