"""What does a whole training run take?

:mod:`.training_run` gives days, energy and money, :mod:`.factors` explains them line by line,
:mod:`.capacity` compares clusters. The share of time that counts is :mod:`.goodput`, an ensemble
of runs with :mod:`.failures` and :mod:`.checkpoints`. :mod:`.end_times` is when a run may end,
with failures and the error of the step.
"""
