"""How do the steps of a job spread, where GPUs, links, experts and lengths vary?

:mod:`.sampled_steps` gives the answer, and :mod:`.step_sampler` draws. A step's operations have
durations per sample (:mod:`.step_costs`), by :mod:`.drawn_jitter` of GPUs and links, for the
slowest of which groups wait, and by what each microbatch brings (:mod:`.drawn_routing` of tokens
to experts, :mod:`.drawn_microbatches` of lengths); :mod:`.sampled_memory` draws what the fullest
GPU holds.
"""
