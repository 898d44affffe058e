"""The pipeline orders, one file per family with the entries of its schedules, and tools."""
