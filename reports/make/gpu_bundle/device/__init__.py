"""What runs on the machine with the GPU; torch is all it needs, from Python 3.10 on.

main                    what is measured, in which order, until the time is up
journal, sensors        what is kept on the disk, and the clocks beside it
memory_items            context, workspaces, rounding of the allocator
training_runs, network  which steps are trained, and the model
training                one training run, measured
"""
