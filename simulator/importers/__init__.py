"""Foreign files read into specifications.

Every importer returns the specification and an :class:`~simulator.importers.report.ImportReport`
that says what was understood, what was left out because it costs nothing, what was
assumed, and what the simulator cannot model.

- ``report.py``: the report.
- ``foreign_config.py``: a nested mapping that records what is read from it.
- ``huggingface.py``: a ``config.json`` of Hugging Face transformers.
- ``huggingface_families.py``: which key of which model family means what.
"""
