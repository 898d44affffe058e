"""FLOP, bytes and seconds of one thing alone; parameters of a device come from its profile."""
