"""How far are predictions from reality.

Published runs, collectives, kernels, and real torch runs on this machine?
"""
