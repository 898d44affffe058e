"""A profile of one's own, made of measurements.

:mod:`.gpu` measures kernels, :mod:`.network` collectives; ``profile_text`` writes the YAML.
"""
