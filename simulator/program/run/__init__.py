"""A step in order.

order, pipeline, pipeline_parts     the passes of each rank, as operations and transfers
repeated_pass, shared_pass          what passes of a rank, or of ranks that hold the same, add again
boundary_buffers                    buffers between pipeline stages
data_parallel, step_end             reductions and gathers; from the last backward to the update
data_parallel_exchanges             who exchanges gradients and weights: collectives, or servers
host_copies                         what is offloaded meanwhile
untrained                           the reference of DPO, or a teacher
single_process                      PyTorch's ``nn.DataParallel``
"""
