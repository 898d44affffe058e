"""Pictures of steps and schedules. The only package that loads matplotlib, never its pyplot.

One step:

- ``pipeline``: what every stage did at every moment (``boxes`` is its geometry)
- ``memory``: who holds the memory of each stage, at the peak and over time
- ``breakdown``: where the time of a step goes; ``difference``: why another takes longer
- ``links``: how busy the links are over the step
- ``roofline``: how near each kernel of a layer comes to what the device could do

The system and what runs on it:

- ``placement``: which ranks sit where (``placement_map``), and which links their groups cross
- ``system``: inside a node (``node_drawing``) and between nodes (``fabric_drawing``);
  ``diagram`` has their boxes and lines
- ``chunk_steps``: a collective step by step, and its links over time
- ``tensor_methods``: 1D, 2D, 2.5D and 3D tensor parallelism

Schedules:

- ``schedule``: what every rank runs under a schedule, and what it holds meanwhile
- ``schedule_comparison``: several schedules on one time axis (``schedule_lanes`` draws slots)
- ``schedule_memory``: what every stage holds, by schedule
- ``zero_in_pipeline``: what sharding costs under a pipeline
- ``gallery``: the page that shows and explains all schedules

Many jobs:

- ``sweep``, ``pareto``: which combination is fast, and what speed costs in memory
- ``strategies``, ``strategy_map``: ways of parallelism compared, and where each is the best
- ``tornado``: which numbers of a profile move the step most
- ``goodput``: where the time of a whole training run goes

Against reality:

- ``accuracy``, ``run_errors``: published and real runs and their predictions
- ``measured_timeline``: a real step below the predicted one
- ``bus_bandwidth``, ``collective_fit``, ``kernel_fit``: measured collectives and kernels

For all of them:

- ``style``: palette, fonts, legends and axes
- ``formats``: how a picture may be written; it loads nothing
- ``small_bitmap``: files that go into a repository

Every picture has two functions: ``build_*_figure(result)`` returns the figure,
``draw_*(result, path)`` writes it.
"""
