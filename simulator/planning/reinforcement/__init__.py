"""Reinforcement learning of a language model: a step that generates, scores and trains.

:mod:`.rl_job` is what a file says, :mod:`.sequences` draws lengths and packs them,
:mod:`.policy_passes` is what the policy computes, :mod:`.weight_refit` how its weights reach the
engine, and :mod:`.rl_step` puts a step together.
"""
