"""Commands about one training step.

run, memory, comparing    time, memory, and why two steps differ
groups                    where ranks sit, and what groups of them exchange
traces                    a real step's trace, compared and replayed
"""
