"""Timeline -> numbers.

:mod:`.simulation` runs a job, :mod:`.step` is the result, :mod:`.summary` makes it from
:mod:`.waits` (where time goes: bubbles and other waits) and :mod:`.memory` (who holds what at
each moment; :mod:`.allocator`: how much of it PyTorch's caching allocator reserves).
:mod:`.step_error` says how far off it may be, :mod:`.own_runs` what measured steps tell of that, :mod:`.own_memory` what measured memory does of
:mod:`.fit_probability`.
:mod:`.traffic` lists what ranks send; :mod:`.views` says all of that in words, as JSON and as boxes
of pictures.
"""
