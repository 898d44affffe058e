"""Command lines of serving engines, read and written.

=========================  ==================================================
:mod:`.engine_options`     which options stand for which fields
:mod:`.launch_lines`       a line, a script or a settings file as a deployment
:mod:`.launch_commands`    the command that starts what a deployment says
=========================  ==================================================
"""
