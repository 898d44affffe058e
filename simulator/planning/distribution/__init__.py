"""How do the steps of a job spread, where GPUs, links, experts and lengths vary?

:mod:`.sampled_steps` gives the answer, and :mod:`.step_sampler` draws. A step's operations have
durations per sample (:mod:`.step_costs`), by :mod:`.draws`: jitter of GPUs and links, for the
slowest of which groups wait, routing of tokens to experts, and lengths of microbatches.
What the fullest GPU holds is of :mod:`.step_costs`, too.
"""
