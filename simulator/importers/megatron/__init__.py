"""Megatron-Core and what is built on it.

``launch_line`` reads scripts of Megatron-LM, ``nemo`` recipes of NeMo or Megatron-Bridge,
``primus`` experiments of Primus. What the settings mean stands in ``megatron_core``,
``megatron_model`` and ``megatron_experts``.
"""
