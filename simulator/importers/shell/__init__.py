"""A launch script, read and never run.

``shell_language`` splits it and fills in variables, ``launch_script`` finds the launch.
"""
