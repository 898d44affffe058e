"""Reinforcement learning of a language model: a step that generates, scores and trains.

:mod:`.described` is what a file says, :mod:`.sequences` draws lengths and packs them,
:mod:`.passes` is what the policy computes, :mod:`.handover` how its weights reach the engine, and
:mod:`.rl_step` puts a step together.
"""
