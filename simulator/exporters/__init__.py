"""A result in the forms that other programs and people read.

- ``chrome_trace``: the step for Perfetto and chrome://tracing
- ``selection``: which rank classes stand for all where there is no room
"""
