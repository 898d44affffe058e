"""Does what known runs teach help with runs that nobody knew?

:mod:`.earlier_versions` asks versions of the past for every run, :mod:`.learning_page` says what
they answered.
"""
