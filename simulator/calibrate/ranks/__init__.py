"""Real ranks to measure with.

===============  ==========================================================================
:mod:`.world`    which ranks there are, on which device, over which library
:mod:`.launch`   a process for each of them on this machine
:mod:`.shaped`   a real network on one machine: links of a given rate between them
===============  ==========================================================================
"""
