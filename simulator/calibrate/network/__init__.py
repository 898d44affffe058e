"""Collectives of a cluster, and the link parameters fitted to them.

measure_collectives    every rank times collectives
measured_network       a profile's network from measured rows
fit_collectives        the shipped profiles' networks from a table of many systems
network_fit            the fit itself, with priors
"""
