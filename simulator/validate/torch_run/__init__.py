"""A job, trained for real by torch's own strategies and held against its prediction.

The ranks themselves are those of :mod:`simulator.ranks`.

===================  =====================================================================
:mod:`.strategies`   what torch's own strategies do of a plan, and what they do not
:mod:`.stage_model`  the layers that one pipeline stage holds, in torch
:mod:`.grid`         the ranks of each group
:mod:`.parallel`     the model cut, sharded, replicated and recomputed as planned
:mod:`.pipeline`     torch's pipeline schedules around the stages of one rank
:mod:`.train`        one step: forward, backward, optimizer
:mod:`.measure`      warm steps, their times, their memory, and a profile of one
:mod:`.measured`     what a run says once it is over, as plain data
:mod:`.trace`        what torch's profiler saw, as spans of time
:mod:`.run`          from a job to a report
:mod:`.predict`      the same numbers from the simulator
:mod:`.compare`      both side by side
===================  =====================================================================
"""
