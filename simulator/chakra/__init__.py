"""Execution traces in MLCommons Chakra's format: written from a step, replayed on other links.

execution_trace         what one rank's trace says, and how its messages are laid out
trace_files             how they lie in a file
from_program            a simulated step as one trace per rank
rank_parts              what one rank's trace does, and what that costs on some links
to_program              traces as a program again, on the links of any cluster

Source: MLCommons Chakra, ``schema/protobuf/et_def.proto`` (fields and numbers, as facts);
arXiv 2305.14516.
"""
