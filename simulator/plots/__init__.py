"""Pictures. The only room that loads matplotlib, never its pyplot.

Every picture has two functions: ``build_*_figure(result)`` returns the figure, ``draw_*(result,
path)`` writes it. ``style`` has palette, fonts, legends and axes for all; ``formats`` says how
a picture may be written and loads nothing.
"""
