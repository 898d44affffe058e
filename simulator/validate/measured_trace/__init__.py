"""A trace of a real step, held against its prediction.

===================  =====================================================================
:mod:`.file`         the events of a trace file of any size, one by one
:mod:`.names`        what a kernel or an operator does, by its name
:mod:`.rows`         what is kept of the events, in columns
:mod:`.step`         one step of torch's profiler as spans of time
:mod:`.nesting`      what a thread does at each moment, where operators call each other
:mod:`.phases`       which of the host's work is forward, backward, optimizer
:mod:`.predicted`    the same spans from the simulator
:mod:`.account`      where the time of a step goes, by phase and kind
:mod:`.compare`      both accounts side by side
===================  =====================================================================
"""
