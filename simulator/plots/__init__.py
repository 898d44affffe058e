"""Pictures of steps and schedules. The only package that loads matplotlib, never its pyplot.

- ``pipeline``: what every stage did at every moment (``boxes`` is its geometry)
- ``memory``: who holds the memory of each stage, at the peak and over time
- ``breakdown``: where the time of a step goes
- ``schedule``: what every rank runs under a schedule, and what it holds meanwhile
- ``schedule_comparison``: several schedules on one time axis (``schedule_lanes`` draws slots)
- ``placement``: which ranks sit where (``placement_map``), and which links their groups cross
- ``chunk_steps``: a collective step by step, and its links over time
- ``bus_bandwidth``: predicted and measured collectives over message size
- ``system``: inside a node (``node_drawing``) and between nodes (``fabric_drawing``);
  ``diagram`` has their boxes and lines
- ``gallery``: the page that shows and explains all schedules
- ``collective_fit``: bus bandwidth over message size, measured and fitted, with the errors
- ``small_bitmap``: files that go into a repository
- ``style``: palette, fonts, legends, axes and file formats of all pictures

Every picture has two functions: ``build_*_figure(result)`` returns the figure,
``draw_*(result, path)`` writes it.
"""
