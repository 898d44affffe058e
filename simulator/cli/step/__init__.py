"""Commands about one training step.

run, memory, comparing    time, memory, and why two steps differ
capturing                 the step of the user's own torch code
groups                    where ranks sit, and what groups of them exchange
traces                    a real step's trace, compared and replayed
"""
