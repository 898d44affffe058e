"""torchtitan.

``settings_file`` reads TOML, and what a registry in Python writes.
"""
