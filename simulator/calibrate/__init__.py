"""A profile of one's own, made of measurements.

gpu/            kernels of one device
network/        collectives of a cluster
new_profile     one started from a data sheet and a relative
own_system      training steps of a system
profile_text    numbers written into a profile's YAML
"""

from simulator.rooms import make_callable

make_callable(__name__)
