"""Why is a real run not as predicted?

:mod:`.hidden_changes` lists what a run may do without saying, :mod:`.observed` holds what was
measured and how far predictions of it are off, and :mod:`.diagnosis` tries one on the other.
"""
