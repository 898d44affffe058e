"""Published training runs.

A row becomes a job (``published_rows``), on the releases of its time (``run_releases``), and is
predicted (``published_runs``), where asked with what the first runs of its source tell
(``anchored_runs``). Ratios between runs of a source are judged on their own (``what_if_errors``).
"""
