"""Published training runs.

A row becomes a job (``published_rows``) and is predicted (``published_runs``).
"""
