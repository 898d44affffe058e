"""Foreign files read into jobs, profiles and measurements.

One file or folder per format. ``assembly`` joins a file with what the user adds, ``settings``
accounts for every setting, ``foreign_file`` parses the text of anyone's file without harm.
Nothing that is read is run.
"""
