"""Foreign files read into specifications.

Every importer returns the specification and an :class:`~simulator.importers.report.ImportReport`
that says what was understood, what was left out because it costs nothing, what was
assumed, and what the simulator cannot model.

- ``report.py``: the report.
- ``foreign_config.py``: a nested mapping that records what is read from it.
- ``huggingface.py``: a ``config.json`` of Hugging Face transformers.
- ``huggingface_families.py``: which key of which model family means what.
- ``nccl_tests.py``: measured collectives, from nccl-tests and rccl-tests.
- ``measured_collective.py``: what one of them says, whichever file it is from.
- ``topology_matrix.py``, ``node_topology.py``: a node's links, from nvidia-smi and rocm-smi.
"""
