"""How far are predictions from reality?

published/, first_sight             published training runs; what was predicted of them first
serving, serving_rows               measured serving of models
serving_first_sight                 what was predicted of it first
collective_errors                   measured collectives
measured_bandwidths                 pictures of them
kernel_errors, kernel_answers       measured kernels
torch_run/                          real torch runs on this machine
measured_trace/                     a trace of a real step
accuracy, profile_review            summaries of errors; what is remarkable about a profile
"""

from simulator.rooms import make_callable

make_callable(__name__)
