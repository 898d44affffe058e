"""Foreign files read into specifications.

Every importer returns the specification and an :class:`~simulator.importers.report.ImportReport`
that says what was understood, what was left out because it costs nothing, what was
assumed, and what the simulator cannot model.

- ``report.py``: the report.
- ``foreign_config.py``: a nested mapping that records what is read from it.
- ``huggingface*.py``: a ``config.json`` of Hugging Face transformers, which gives a model.
- ``nccl_tests.py``: measured collectives, from nccl-tests and rccl-tests.
- ``measured_collective.py``: what one of them says, whichever file it is from.
- ``topology_matrix.py``, ``node_topology.py``: a node's links, from nvidia-smi and rocm-smi.

Files of training frameworks give whole jobs:

- ``foreign_file.py``: how the text of a file from anyone is parsed without harm.
- ``settings.py``: how each setting is accounted for.
- ``assembly.py``: how a file and what the user adds to it become a job.
- ``megatron.py``, ``deepspeed.py``, ``torchtitan.py``, ``accelerate.py``, ``nemo.py``: one
  framework each; ``*_options.py``: which option means what.
- ``megatron_core.py``, ``megatron_model.py``, ``megatron_memory.py``: what Megatron-LM, NeMo
  and Megatron-Bridge share.
- ``torchtitan_pipeline.py``: torchtitan's schedules, by name or from a CSV file.
- ``python_config.py``: configurations that are Python functions, read and never run.
- ``shell.py``, ``shell_words.py``, ``shell_expansion.py``: a launch script, read and never run.
"""
