"""Captured steps of plain torch code beside the simulator's own programs of the same jobs.

==========================  ==========================================================
:mod:`.cases`               the jobs, and why some differ
:mod:`.captured_case`       a job trained by plain torch code, captured and tracked
:mod:`.comparison`          both sides
:mod:`.captures_page`       the page
:mod:`.published_rows`      published runs, by their captured code and as jobs
:mod:`.published_captures`  how their code is captured
:mod:`.foundry_rows`        those of llm-foundry, of which many share a capture
:mod:`.own_code`            code over other libraries, captured
==========================  ==========================================================

``python -m reports.make.captures > reports/captures.md`` makes everything anew.
"""
