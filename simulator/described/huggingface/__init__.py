"""A Hugging Face ``config.json`` as a model.

``config_file`` reads it, ``families`` says what its keys mean.
"""
