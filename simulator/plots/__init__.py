"""Pictures. The only room that loads matplotlib, never its pyplot.

Every picture has two functions: ``build_*_figure(result)`` returns the figure, ``draw_*(result,
path)`` writes it. ``style`` has palette, fonts, legends and axes for all.

pipeline, memory, comparison, links, roofline       one step
sweep, goodput, variant_comparison                  many steps
schedule, schedule_lanes                            orders of a pipeline
bus_bandwidth, kernel_fit, measured_timeline        predictions beside measurements
machines/                                           systems, placements, steps of a collective
"""
