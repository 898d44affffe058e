"""What does one rank of the user's code do, on a GPU that is not there?

=======================  ==========================================================
:mod:`.one_rank`         a script or function as one rank; :mod:`.rank_process` is its process
:mod:`.absent_gpu`       torch takes a CUDA device for present
:mod:`.absent_streams`   ``torch.cuda``: streams, events, memory, properties
:mod:`.gpu_kernels`      operators that a GPU runs as one kernel
:mod:`.alignment_loss`   ``ctc_loss``
:mod:`.flexible_attention` ``flex_attention`` and its masks
:mod:`.fused`            operators of compiled code that are one kernel
:mod:`.unknown`          numbers and shapes that only a real run knows
:mod:`.refusals`         what is skipped, and what is refused
:mod:`.recorder`         operators and storages, as they happen
:mod:`.operators`        what one of them reads and writes
:mod:`.groups`           collectives and what waits for them
:mod:`.modules`          which module, and forward, backward or update
:mod:`.owners`           who holds a block of memory
:mod:`.pipelines`        stages that agree on shapes
:mod:`.reducer`          DistributedDataParallel's buckets
:mod:`.record`           what is written down
:mod:`.settle`           the step, cut out of it
=======================  ==========================================================
"""
