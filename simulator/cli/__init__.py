"""The command line: data on stdout, talk on stderr.

app            the commands, exit codes and what a crash looks like
console        tables and notes, on a terminal and off it
options        arguments that several commands share, and their completion
run, memory    one training step
sweep          a grid of changes
plan           the fastest plans that fit
balance        layers over pipeline stages
importing      foreign configurations to jobs
profiles       hardware profiles: list, show, check
models         shipped models
calibrating    profiles from measurements
validating     predictions against reality
schedules      pipeline orders
schemas        JSON schemas of the files
"""

from simulator.cli.app import main

__all__ = ["main"]
