"""In which order does every pipeline rank run its forwards and backwards?

slots           Phase, Slot, Order, Placement: the words everything here is said in
info            ScheduleInfo: all facts of a schedule; refuses wrong sizes
orders/         the order functions, each with its schedule's entry; tools to write them with
registry        the schedules by name, which lists a new one; ``schedule_order`` builds one
written         orders as torch and torchtitan write them, and whether they can run
unit_time       when each slot runs, given a time per phase and free communication
rendezvous      whether an order survives blocking sends
unit_run        schedules run that way: step, bubble, activations; several side by side
terminal_text   the picture of a run in plain text
"""

from simulator.rooms import make_callable
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

make_callable(__name__)
