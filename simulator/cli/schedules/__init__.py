"""Commands about pipeline orders and collectives by themselves."""
