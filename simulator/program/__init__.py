"""Description + cost + schedule -> Program: what each class of ranks does, in which order.

``ir`` is the Program, ``build`` makes it of a job; ``communication`` prices what only exchanges.
What a :mod:`.layer` is made of; :mod:`.strategies` rewrite it; :mod:`.grid` says which rank is
where, :mod:`.states` who keeps what, :mod:`.price` what it costs in time and memory, :mod:`.run`
in which order a step runs it, :mod:`.unlike` what changes where ranks differ.
"""
