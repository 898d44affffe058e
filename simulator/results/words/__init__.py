"""What a result says in sentences and plain data."""
