"""Passes that rewrite a layer.

tensor_parallel                   with and without sequence parallelism
grid_parallel, grid_products      2D, 2.5D and 3D
expert_parallel, expert_dispatch  experts over ranks, and the way of tokens to them and back
recompute, split_backward         what backward repeats, and what lies between its two halves
backward_memory                   what backward holds, piece by piece
router_graph                      what a router that keeps its results keeps with them
frozen_weights                    weights that are not trained, and adapters beside them
divided_layer                     all passes, applied to one layer
"""
