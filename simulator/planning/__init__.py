"""Which questions reach beyond one step?

- ``nearest_fit``: which change makes a job fit into memory?
- ``misfit``: why does it not fit, in words?
- ``balance``: which layers should each pipeline stage hold?
"""
