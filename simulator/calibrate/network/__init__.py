"""Collectives of a cluster, and the link parameters fitted to them.

measure_collectives    every rank times collectives
measured_network       a profile's network from measured rows, and how far it is from each of them
network_fit            the fit itself, with priors
"""
