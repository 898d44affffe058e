"""Commands about many steps.

plan, sweep          the fastest plan that fits; a grid of changes
advise               which strategies suit a model; what each kind of data parallelism costs
variations           balance, limits, sensitivity and spread of the steps of one job
capacity             a whole training run, on one cluster or on what several offers rent
"""
