"""What people and programs read of a finished step.

:mod:`.verdict` says what limits it, :mod:`.remarks` what to know beside the numbers,
:mod:`.difference` why two steps differ, :mod:`.plain_data` all of it as JSON; :mod:`.rank_classes`
are the rows and :mod:`.pipeline_boxes` the boxes of pictures.
"""
