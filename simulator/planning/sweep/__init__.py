"""A job over a grid of changes, on workers that may die, going on where it was killed."""
