"""Collectives of a cluster, and the link parameters fitted to them.

measure_collectives    every rank times collectives
measured_network       a profile's network from measured rows, and how far it is from each of them
link_priors            what is believed of links before any row is seen
network_fit            the fit itself
"""
