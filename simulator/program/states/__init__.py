"""Who keeps what.

Parameters, gradients, optimizer states; the units in which they are gathered and reduced.
"""
