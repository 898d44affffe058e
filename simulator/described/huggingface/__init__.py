"""A Hugging Face ``config.json`` as a model, and how many parameters it has.

``config_file`` reads it, ``families`` says what its keys mean. ``parameter_counts`` counts the
networks of many more families, by ``formulas`` over their keys. ``hub_names`` knows
which shipped model a name of the hub stands for.
"""
