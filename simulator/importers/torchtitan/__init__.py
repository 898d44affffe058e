"""torchtitan.

``settings_file`` reads TOML, ``python_config`` Python functions.
"""
