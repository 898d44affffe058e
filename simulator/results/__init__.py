"""Timeline -> numbers.

:mod:`.simulation` runs a job, :mod:`.step` is the result, :mod:`.summary` makes it from
:mod:`.waits` (where time goes: bubbles and other waits) and :mod:`.memory` (who holds what at
each moment; :mod:`.allocator`: how much of it PyTorch's caching allocator reserves, and
:mod:`.shorter_sequences` what it meets beside the longest; :mod:`.host_memory` on the nodes).
:mod:`.step_error` says how far off it may be, :mod:`.ratio_error` how far the gain of one step over
another, and :mod:`.fit_probability` how far its memory;
:mod:`.own_runs` and :mod:`.own_memory` what measured steps and memory tell of that.
:mod:`.traffic` lists what ranks send; :mod:`.views` says all of that in words, as JSON and as boxes
of pictures.
"""
