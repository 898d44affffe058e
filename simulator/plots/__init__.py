"""Pictures of a step. The only package that loads matplotlib, and never its pyplot.

- ``pipeline``: what every stage did at every moment (``boxes`` is its geometry)
- ``memory``: who holds the memory of each stage, at the peak and over time
- ``breakdown``: where the time of a step goes
- ``style``: palette, fonts, legends, axes and file formats of all pictures

Every picture has two functions: ``build_*_figure(result)`` returns the figure,
``draw_*(result, path)`` writes it.
"""
