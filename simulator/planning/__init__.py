"""Questions above one step.

:mod:`.search` finds the fastest plans, :mod:`.changes` tries single changes of a job,
:mod:`.sweep` a grid of them (on :mod:`.executors` or a :mod:`.dask_cluster`),
:mod:`.campaign` asks for a whole training run, :mod:`.offers` which GPUs to rent for it,
:mod:`.run_diagnosis` why an :mod:`.observed_run` is not as predicted, or that no listed cause is
to blame (:mod:`.unlisted_cause`). :mod:`.limits` finds the
largest sizes that fit, :mod:`.drawn_lengths` steps of sequences of many lengths,
:mod:`.distribution` how steps spread where GPUs, links, experts and lengths vary;
:mod:`.compared_strategies` compares families of plans at their best, and ways of data
parallelism as they are, which :mod:`.drawn_strategies` draws.
"""
