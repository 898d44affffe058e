"""A job, trained for real by torch's own strategies and held against its prediction.

supported_plan                   what torch's own strategies do of a plan, and what they do not
reference_model, split_model     the model in torch, whole and shared by ranks
parallelise                      groups of ranks; the model cut, sharded, replicated, recomputed
train                            one step, and torch's pipeline schedules in it
measure, recorded_trace          times and memory of warm steps; phases and the profile of one
predict, run_comparison          the same numbers from the simulator, and both side by side
train_and_compare                from a job to a report
"""
