"""torchtitan.

``settings_file`` reads TOML, ``python_config`` Python functions; ``torchtitan_options`` says
what options mean.
"""
