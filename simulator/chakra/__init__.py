"""Execution traces in MLCommons Chakra's format: written from a step, replayed on other links.

- ``trace.py``: what one rank's trace says, as plain data.
- ``messages.py``, ``files.py``: how that lies in a file.
- ``groups.py``: which ranks exchange, and where they sit.
- ``from_program.py``: a simulated step as one trace per rank.
- ``rank_parts.py``: what one rank's trace does, and what that costs on some links.
- ``to_program.py``, ``replay.py``: traces as a program again, on the links of any cluster.

Source: MLCommons Chakra, ``schema/protobuf/et_def.proto`` (fields and numbers, as facts);
arXiv 2305.14516.
"""
