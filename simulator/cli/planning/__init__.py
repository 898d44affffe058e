"""Commands about many steps: searches, sweeps, whole training runs."""
