"""How long do the kernels of serving take: few rows, long caches, small messages?

Training's kernels (:mod:`simulator.cost`) are fitted to large shapes; these to the shapes of
serving, each family of devices and number format with parameters of its own.

======================  ==================================================
:mod:`.parameters`      the fitted numbers, read from ``kernels.yaml``
:mod:`.products`        activations times weights
:mod:`.cache_attention` one query or a chunk against a cache
:mod:`.routed_experts`  grouped products of the experts that tokens reach
:mod:`.exchange`        all_reduce and all_to_all of small messages
======================  ==================================================
"""
