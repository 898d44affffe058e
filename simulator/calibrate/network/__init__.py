"""Collectives of a cluster, and the link parameters fitted to them.

measure_collectives    every rank times collectives
measured_network       a profile's network from measured rows
fit_residuals          how far a fitted network is from each collective, group and size
network_fit            the fit itself, with priors
"""
