"""How does a training step of the user's own torch code become a program?

The code runs once for each rank that differs, on a GPU that is not there: tensors have
shapes and no contents, process groups have any size and no wires. What it launches, sends,
takes and gives back is written down in a file, and from the file comes a
:class:`~simulator.program.ir.Program`, on any profile.

=====================  ==========================================================
:mod:`.make`           a script or function, run on ranks that do not exist
:mod:`.absent_gpu`     torch takes a CUDA device for present
:mod:`.absent_streams` ``torch.cuda``: streams, events, memory, properties
:mod:`.recorder`       operators, collectives, storages, as they happen
:mod:`.groups`         collectives and what waits for them
:mod:`.modules`        which module, and forward, backward or update
:mod:`.reducer`        DistributedDataParallel's buckets
:mod:`.gpu_kernels`    operators that a GPU runs as one kernel
:mod:`.table`          the recorded step, as columns
:mod:`.file`           the same on disk
:mod:`.kernel_cost`    seconds of an operator
:mod:`.to_program`     the step as a program
:mod:`.memory`         who holds what, when
:mod:`.result`         the simulated step
=====================  ==========================================================

torch is needed to make a capture, never to read or simulate one.
"""
