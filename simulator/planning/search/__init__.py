"""The fastest plans of a ``space`` that fit: ``search`` proves it with a ``bound``."""
