"""A trace of a real step, held against its prediction.

trace_events        the events of a trace file of any size, one by one, of torch or Nsight Systems
kernel_names        what a kernel or an operator does, by its name
rows                what is kept of the events, in columns
trace_phases        what the host does at each moment: which operator, which phase
measured_step       one step of torch's profiler as spans of time
account             where the time of a step goes, measured or predicted
trace_comparison    both accounts side by side, and whether the trace is of the same model
"""
