"""What does a whole training run take?

:mod:`.training_run` gives days, when it may end, energy and money, :mod:`.factors` explains them
line by line, :mod:`.capacity` compares clusters. The share of time that counts is :mod:`.goodput`,
an ensemble of runs with :mod:`.failures` and :mod:`.checkpoints`.
"""
