"""Which pipeline schedules are there?

To add one, write its order function in a file of this folder and add its entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.errors import InputError
from simulator.schedule import bounds as limits
from simulator.schedule.info import ScheduleInfo
from simulator.schedule.orders.chimera import chimera
from simulator.schedule.orders.controllable_memory import v_half, v_min
from simulator.schedule.orders.dual_pipe import dualpipe, dualpipe_v
from simulator.schedule.orders.fill_drain import gpipe, looped_bfs, naive
from simulator.schedule.orders.one_f_one_b import interleaved_one_f_one_b, one_f_one_b
from simulator.schedule.orders.varuna import varuna, varuna_of
from simulator.schedule.orders.zero_bubble import zb_1p, zb_2p, zb_2p_of, zb_h1, zb_h2
from simulator.schedule.orders.zero_bubble_v import zb_v
from simulator.schedule.slots import Order, Placement


def schedule_info(name: str) -> ScheduleInfo:
    """The schedule of that name.

    Raises:
        InputError: There is none.
    """
    if name not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise InputError.single("plan.schedule", "no such schedule", name, f"take one of {known}")
    return SCHEDULES[name]


def schedule_order(name: str, stages: int, chunks: int, microbatches: int) -> Order:
    """What every rank runs, in order: one list of slots per rank.

    Args:
        name: A key of :data:`SCHEDULES`.
        stages: Ranks of the pipeline, ``plan.pp``.
        chunks: Model chunks per rank, ``plan.vpp``.
        microbatches: Microbatches per step and pipeline.

    Raises:
        InputError: Unknown name, or a size below 1.
        UnsupportedError: The schedule has no order for these sizes.

    Example:
        >>> [" ".join(map(str, rank)) for rank in schedule_order("1f1b", 2, 1, 3)]
        ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """
    info = schedule_info(name)
    info.check(stages, chunks, microbatches)
    return info.order(stages, chunks, microbatches)


_INFOS = (
    ScheduleInfo(
        name="naive",
        order=naive,
        summary="one microbatch at a time; one rank works, the others wait",
        source="GPipe, arXiv 1811.06965, figure 2b",
        in_flight=limits.one_in_flight,
    ),
    ScheduleInfo(
        name="gpipe",
        order=gpipe,
        summary="all forwards, then all backwards",
        source="GPipe, arXiv 1811.06965",
        in_flight=limits.all_in_flight,
    ),
    ScheduleInfo(
        name="pipedream",
        order=one_f_one_b,
        summary="1F1B without flush; a weight version per microbatch in flight",
        source="PipeDream, arXiv 1806.03377",
        in_flight=limits.one_f_one_b_in_flight,
        synchronous=False,
        updates_every_microbatch=True,
        weight_versions=limits.stashed_versions,
        staleness=limits.microbatches_ahead,
    ),
    ScheduleInfo(
        name="pipedream-2bw",
        order=one_f_one_b,
        summary="1F1B without flush; two weight versions",
        source="PipeDream-2BW, arXiv 2006.09503",
        in_flight=limits.one_f_one_b_in_flight,
        synchronous=False,
        weight_versions=limits.two_versions,
        staleness=limits.one_update,
        rule=limits.fills_pipeline,
    ),
    ScheduleInfo(
        name="1f1b",
        order=one_f_one_b,
        summary="one forward, one backward; activations of at most p microbatches",
        source="PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473",
        in_flight=limits.one_f_one_b_in_flight,
    ),
    ScheduleInfo(
        name="dapple",
        order=one_f_one_b,
        summary="early backward, policy A: the order of 1f1b",
        source="DAPPLE, arXiv 2007.01045",
        in_flight=limits.one_f_one_b_in_flight,
    ),
    ScheduleInfo(
        name="interleaved-1f1b",
        order=interleaved_one_f_one_b,
        summary="1F1B over several chunks per rank; the bubble shrinks by their number",
        source="Megatron-LM, arXiv 2104.04473; torch ScheduleInterleaved1F1B",
        in_flight=limits.interleaved_in_flight,
        buffers=limits.interleaved_messages,
        chunks=(2, None),
        rule=limits.whole_rounds,
    ),
    ScheduleInfo(
        name="looped-bfs",
        order=looped_bfs,
        summary="breadth first over the chunks; fewest reductions under ZeRO-2",
        source="Breadth-First Pipeline Parallelism, arXiv 2211.05953",
        in_flight=limits.all_in_flight,
        buffers=limits.looped_bfs_messages,
        chunks=(1, None),
    ),
    ScheduleInfo(
        name="zb-h1",
        order=zb_h1,
        summary="split backward, memory of 1F1B, bubble (p-1)(tF+tI-tW)",
        source="Zero Bubble, arXiv 2401.10241",
        in_flight=limits.zb_h1_in_flight,
        splits_backward=True,
    ),
    ScheduleInfo(
        name="zb-h2",
        order=zb_h2,
        summary="split backward, twice the memory of 1F1B, no bubble at equal times",
        source="Zero Bubble, arXiv 2401.10241",
        in_flight=limits.zb_h2_in_flight,
        buffers=limits.one_message,
        splits_backward=True,
    ),
    ScheduleInfo(
        name="zb-1p",
        order=zb_1p,
        summary="split backward, activations of p microbatches, several chunks per rank",
        source="Zero Bubble, arXiv 2401.10241; torch ScheduleInterleavedZeroBubble",
        in_flight=limits.zb_1p_in_flight,
        buffers=limits.zb_1p_messages,
        chunks=(1, None),
        rule=limits.whole_rounds,
        splits_backward=True,
    ),
    ScheduleInfo(
        name="zb-2p",
        order=zb_2p,
        costed_order=zb_2p_of,
        summary="split backward, searched within the activations of 2p microbatches",
        source="Zero Bubble, arXiv 2401.10241, section 3",
        in_flight=limits.zb_2p_in_flight,
        buffers=limits.one_message,
        splits_backward=True,
    ),
    ScheduleInfo(
        name="zb-v",
        order=zb_v,
        summary="split backward, two chunks as a V, memory of 1F1B, no bubble at equal times",
        source="Zero Bubble, arXiv 2401.10241; torch ScheduleZBVZeroBubble",
        in_flight=limits.zb_v_in_flight,
        buffers=limits.one_message,
        placement=Placement.V,
        chunks=(2, 2),
        splits_backward=True,
    ),
    ScheduleInfo(
        name="v-half",
        order=v_half,
        summary="split backward, two chunks as a V, half the memory of 1F1B",
        source="Controllable Memory, arXiv 2405.15362",
        in_flight=limits.v_half,
        buffers=limits.one_message,
        placement=Placement.V,
        chunks=(2, 2),
        splits_backward=True,
    ),
    ScheduleInfo(
        name="v-min",
        order=v_min,
        summary="split backward, two chunks as a V, a third of the memory of 1F1B",
        source="Controllable Memory, arXiv 2405.15362",
        in_flight=limits.v_min,
        placement=Placement.V,
        chunks=(2, 2),
        splits_backward=True,
    ),
    ScheduleInfo(
        name="dualpipe",
        order=dualpipe,
        summary="two copies of the model in opposite directions; forward and backward joined",
        source="DeepSeek-V3, arXiv 2412.19437",
        in_flight=limits.dualpipe_in_flight,
        buffers=limits.one_message,
        placement=Placement.BIDIRECTIONAL,
        rule=limits.dualpipe_sizes,
        splits_backward=True,
    ),
    ScheduleInfo(
        name="dualpipev",
        order=dualpipe_v,
        summary="DualPipe cut in half: one copy of the model, two chunks as a V",
        source="DeepSeek DualPipe; torch ScheduleDualPipeV",
        in_flight=limits.dualpipe_in_flight,
        buffers=limits.one_message,
        placement=Placement.V,
        chunks=(2, 2),
        rule=limits.two_per_rank,
        splits_backward=True,
    ),
    ScheduleInfo(
        name="chimera",
        order=chimera,
        summary="two copies of the model in opposite directions; half the bubble of 1F1B",
        source="Chimera, arXiv 2107.06925",
        in_flight=limits.chimera_in_flight,
        placement=Placement.BIDIRECTIONAL,
        rule=limits.even_directions,
    ),
    ScheduleInfo(
        name="varuna",
        order=varuna,
        costed_order=varuna_of,
        summary="backward whenever one is ready, else forward; for full recomputation",
        source="Varuna, arXiv 2111.04007, and the generator in its repository",
        in_flight=limits.varuna_in_flight,
        buffers=limits.varuna_messages,
    ),
    ScheduleInfo(
        name="sagemaker-simple",
        order=gpipe,
        summary="forwards of all microbatches first: the order of gpipe",
        source="SageMaker model parallelism, arXiv 2111.05972",
        in_flight=limits.all_in_flight,
    ),
    ScheduleInfo(
        name="sagemaker-interleaved",
        order=one_f_one_b,
        summary="backwards come first, forwards between them: the order of 1f1b",
        source="SageMaker model parallelism, arXiv 2111.05972",
        in_flight=limits.one_f_one_b_in_flight,
    ),
)

SCHEDULES: Mapping[str, ScheduleInfo] = MappingProxyType({info.name: info for info in _INFOS})
"""Every schedule by the name that ``plan.schedule`` uses."""
