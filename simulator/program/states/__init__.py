"""Who keeps what: parameters, gradients, optimizer states.

resident                       bytes that one rank holds from step to step
pipeline_ranks                 which layers each rank of a pipeline holds, and who holds the same
gather_units                   which parameters are gathered together; buckets of gradients
gradient_buckets               buffers that gradients pass through
data_parallel_collectives      the collectives of every ZeRO stage, and their cost
separate_parameters            weights that are gathered one by one
gathered_memory, update_memory, outside_memory    memory while gathering, updating, outside tensors
placeholder_gradients          what stands in for gradients that are already added up
cached_copies                  16-bit copies of weights that autocast holds until forward ends
optimizer_states               what each optimizer keeps, reads and writes
parameter_server               hosts that hold and update the parameters
"""
