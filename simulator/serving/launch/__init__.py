"""Which command starts an engine as a deployment says, and which deployment does one start?

======================  ==================================================
:mod:`.options`         the engines' options, and the fields that they are
:mod:`.launch_lines`    a command becomes a deployment, and the reverse
======================  ==================================================
"""
