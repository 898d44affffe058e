"""Single changes of a job, tried.

:mod:`.single_changes` is the list, :mod:`.trials` simulates it. :mod:`.helpful_changes`
ranks what helps, :mod:`.plan_reasons` what would help the plan that a search found,
:mod:`.profile_numbers` what matters, :mod:`.balance` deals layers to stages, :mod:`.small_machine`
is what people with a few GPUs do, and :mod:`.advice` says it in words.
"""
