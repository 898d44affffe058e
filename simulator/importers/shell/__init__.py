"""A launch script, read and never run.

``shell_words`` splits, ``shell_expansion`` fills in, ``launch_script`` finds the launch.
"""
