"""Pictures. The only room that loads matplotlib, never its pyplot.

Of every picture ``build_*_figure`` returns the figure; ``style.save`` writes one. ``style`` has
palette, fonts, legends and axes for all.

pipeline, memory, comparison, links, roofline       one step
sweep, goodput, variant_comparison, distribution    many steps
offer_intervals                                     offers side by side
serving                                             requests of a serving run
rl                                                  phases of a step of reinforcement learning
schedule                                            orders of a pipeline
microbatch_boxes                                    boxes that pipeline and schedule draw alike
bus_bandwidth, kernel_fit, measured_timeline        predictions beside measurements
machines/                                           systems, placements, steps of a collective
"""
