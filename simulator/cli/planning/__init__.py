"""Commands about many steps.

plan, sweep          the fastest plan that fits; a grid of changes
advise               which strategies suit a model; what each kind of data parallelism costs
variations           balance, limits and sensitivity of one job
capacity             a whole training run
"""
