"""Megatron-LM.

``launch_line`` reads a script; NeMo and Megatron-Bridge share ``megatron_core``, ``_model`` and
``_memory``.
"""
