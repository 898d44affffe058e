"""What the user says: frozen, validated, serialisable.

A :mod:`.job` is a :mod:`.model`, a :mod:`.cluster`, a :mod:`.plan`, a batch and its
:mod:`.variation`; :mod:`.load` reads files into it, and :mod:`.rules` holds what must be
true between its fields. Foreign models are read by :mod:`.huggingface`.
"""
