"""Foreign files read into jobs, profiles and measurements.

One file or folder per format. ``assembly`` parses anyone's file without harm and joins it with what
the user adds, ``settings`` accounts for every setting. Nothing that is read is run.
"""
