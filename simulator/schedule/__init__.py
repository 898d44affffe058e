"""In which order does every pipeline rank run its forwards and backwards?

slots       Phase, Slot, Order, Placement: the words everything here is said in
info        ScheduleInfo: what else is known about a schedule; refuses wrong sizes
registry    the schedules by name; ``schedule_order`` is the entry
limits      sizes a schedule runs with, activations it holds
fill_drain, one_f_one_b, zero_bubble, zero_bubble_v, controllable_memory, dual_pipe,
chimera, varuna     the orders, one file per family
pass_costs  what an order knows that is decided from a job's own passes
zero_bubble_search      the order that fills the bubbles of given passes
list_scheduling, numbering      tools to write orders with
csv         orders as torch and torchtitan write them
written     the schedule that such a file holds, checked
unit_time   when each slot runs, given a time per phase and free communication
unit_run    one schedule at some sizes, run that way: step, bubble, activations over time
comparison  several schedules at equal work
notes       what each schedule does, and its closed forms
text        the picture of a run in plain text
rendezvous  whether an order survives blocking sends
"""

from simulator.schedule.info import ScheduleInfo
from simulator.schedule.registry import SCHEDULES, schedule_info, schedule_order
from simulator.schedule.slots import Order, Phase, Placement, Slot

__all__ = [
    "SCHEDULES",
    "Order",
    "Phase",
    "Placement",
    "ScheduleInfo",
    "Slot",
    "schedule_info",
    "schedule_order",
]
