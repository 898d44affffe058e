"""The pipeline orders, one file per family, and tools to write them with."""
