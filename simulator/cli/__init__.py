"""The command line: data on stdout, talk on stderr.

app                which module holds each command; exit codes and what a crash looks like
completion         what a shell may complete: jobs, fields and their values
console, options   tables and notes; arguments that several commands share
compared_jobs      files and variants that a command compares
init               a first job from five questions
mcp_server, mcp_tools   the commands as tools for coding agents
step/              one training step: run, compare, memory, placement, traffic, traces
planning/          many steps: plan, sweep, advise, capacity, balance, limits, sensitivity
measuring/         calibrate and validate
studio             a page to click, in the browser
serving            requests on a deployment, sized and priced
schedule, schedules_of_job, collective   orders of a pipeline, steps of a collective
foreign_files      import
exporting          export
shipped            shipped models and how many parameters one has; profiles and schemas
"""

from simulator.cli.app import main

__all__ = ["main"]
