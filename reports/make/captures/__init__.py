"""Captured steps of plain torch code beside the simulator's own programs of the same jobs.

=======================  ==========================================================
:mod:`.cases`            the jobs, and why some differ
:mod:`.captured_case`    a job trained by plain torch code, captured and tracked
:mod:`.comparison`       both sides
:mod:`.captures_page`    the page
=======================  ==========================================================

``python -m reports.make.captures > reports/captures.md`` makes everything anew.
"""
