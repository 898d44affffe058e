"""A step, or several, as one HTML file that needs nothing else.

- ``page``: a template with its style and scripts inside, nothing fetched
- ``run_report``: what one step's page says
- ``compare_report``: how several steps differ
- ``timeline_data``, ``memory_data``: what the scripts draw, as packed columns
- ``sources``: which numbers of the hardware profile an operation rests on

Templates, style and scripts lie beside these modules.
"""
