"""Which small jobs and passes can a test work with by eye?

Jobs on the round-number device of :mod:`tests.tiny`, with four GPUs per node and links
of 1 GB/s; pipelines whose every pass takes a given time; and random plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from simulator.described.cluster.hardware import HardwareProfile, Host
from simulator.described.job import Batch, Cluster, Job
from simulator.described.model import Experts, Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.shipped_stacks import named_stack
from simulator.described.rules.all_rules import job_faults
from simulator.engine.replay import replay
from simulator.engine.timeline import Timeline
from simulator.errors import InputError
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, Program, RankClass, Work
from simulator.program.price.unit_cost import ForwardMemory
from simulator.program.run.pipeline import Pipeline, add_pipeline
from simulator.program.run.pipeline_parts import Gather
from simulator.program.run.repeated_pass import RankState
from simulator.program.strategies.backward_memory import BackwardMemory
from simulator.program.strategies.split_backward import Halves, whole_until_the_end
from simulator.schedule import Phase, Slot, schedule_info, schedule_order
from tests.tiny import tiny_profile

GPUS_PER_NODE = 4

SCALE_UP = {
    "kind": "nvswitch",
    "gpus": GPUS_PER_NODE,
    "bandwidth": "1 GB/s",
    "efficiency": 1.0,
    "latency": "1 us",
    "bulk_latency": "1 us",
    "launch": "1 us",
    "sm_count": 1,
}
FABRIC = {
    "kind": "ib",
    "nics_per_node": GPUS_PER_NODE,
    "nic": "1 GB/s",
    "efficiency": 1.0,
    "latency": "1 us",
    "bulk_latency": "1 us",
    "sm_count": 1,
}
HOST = {
    "memory": "1 TB",
    "pcie": "1 GB/s",
    "memory_bandwidth": "40 GB/s",
    "optimizer_efficiency": 0.5,
    "nvme": {"size": "1 TB", "read": "2 GB/s", "write": "1 GB/s"},
}
NO_LATENCY = {"latency": "0 s", "bulk_latency": "0 s"}


def network_profile(
    scale_up: Mapping[str, Any] | None = None, fabric: Mapping[str, Any] | None = None
) -> HardwareProfile:
    """Four GPUs per node, one NIC each, 1 GB/s and 1 us everywhere, with some links changed."""
    tiny = tiny_profile()
    document = tiny.model_dump(by_alias=True, exclude_unset=True)
    document["network"] = {
        "gpus_per_node": GPUS_PER_NODE,
        "scale_up": {**SCALE_UP, **(scale_up or {})},
        "fabric": {**FABRIC, **(fabric or {})},
    }
    profile = HardwareProfile.model_validate(document)
    return profile.model_copy(update={"kernels": tiny.kernels})


def free_latency_profile() -> HardwareProfile:
    """The same with links that have bandwidth only, so that rings always win."""
    return network_profile({**NO_LATENCY, "launch": "0 s"}, NO_LATENCY)


def host_profile(**changes: Any) -> HardwareProfile:
    """Four GPUs per node on a host in round numbers."""
    host = Host.model_validate({**HOST, **changes})
    return network_profile().model_copy(update={"host": host})


def small_model(**fields: Any) -> Model:
    """A gated transformer that divides by 8: l 4, h 64, a 8, k 4, f 128, v 1000."""
    sizes = {"layers": 4, "hidden": 64, "heads": 8, "kv_heads": 4, "ffn_hidden": 128}
    return Model.model_validate({"name": "small", **sizes, "vocab": 1000, **fields})


def gpt_model(**fields: Any) -> Model:
    """A GPT-2 of l 4, h 64, a 8, v 1024: plain MLP of 4 h, biases, learned positions."""
    return small_model(
        **{
            "kv_heads": 8,
            "ffn_hidden": 256,
            "vocab": 1024,
            "gated_mlp": False,
            "activation": "gelu",
            "positions": "learned",
            "max_positions": 64,
            "normalisation": "layernorm",
            **fields,
        }
    )


def small_job(
    model: Model | None = None,
    *,
    gpus: int = 1,
    profile: HardwareProfile | None = None,
    global_batch: int = 8,
    micro_batch: int = 1,
    seq_len: int = 64,
    **plan: Any,
) -> Job:
    """A sound job; ``plan`` holds the fields of its plan.

    Raises:
        InputError: The fields break a rule.
    """
    job = Job(
        model=model or small_model(),
        cluster=Cluster(profile=profile or network_profile(), gpus=gpus),
        batch=Batch(global_batch=global_batch, micro_batch=micro_batch, seq_len=seq_len),
        plan=Plan(**plan),
    )
    faults = job_faults(job)
    if faults:
        raise InputError(faults)
    return job


SCHEDULES_WITH_CHUNKS = {
    "naive": (1,),
    "gpipe": (1,),
    "1f1b": (1,),
    "interleaved-1f1b": (2, 4),
    "looped-bfs": (1, 2),
    "zb-h1": (1,),
    "zb-v": (2,),
}
"""Numbers of chunks that random plans take, by schedule."""

STACK_NAMES = ["megatron-core", "megatron-lm-2021", "torch-fsdp", "torchtitan", "torch"]
"""Stacks that random plans take."""

FAST_HOST = {
    "base": "megatron-core",
    "host_work_per_launch": 1,
    "host_work_per_exchange": 1,
    "host_work_per_expert_layer": 0,
}
"""Megatron-Core on a host that takes for each launch what a bare one takes."""

SIXTEEN_BIT_TORCH: Mapping[str, Any] = {"base": "torch", "keeps_half_weights": True}
"""Eager modules of torch that are 16-bit themselves, so that no product casts what it reads."""

DISPATCHERS = ["all_to_all", "all_gather", "hierarchical"]
"""How tokens get to their experts in random plans."""

_FLAG = st.sampled_from([None, True, False])


@st.composite
def jobs(draw: st.DrawFn, profile: HardwareProfile | None = None) -> Job:
    """Random plans of a small model, on random links unless a profile is given."""
    tp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    dp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    names = list(SCHEDULES_WITH_CHUNKS) if pp > 1 else ["1f1b", "gpipe"]
    schedule = draw(st.sampled_from(names))
    vpp = draw(st.sampled_from(SCHEDULES_WITH_CHUNKS[schedule]))
    micro_batch = draw(st.sampled_from([1, 2]))
    microbatches = pp * draw(st.integers(1, 3))
    cp_method = draw(st.sampled_from(["ring", "all_to_all", "all_gather", "all_to_all+ring"]))
    experts = draw(st.sampled_from([None, Experts(count=4, top_k=2, ffn_hidden=128)]))
    degrees = [n for n in (1, 2, 4) if (tp * cp * dp) % n == 0] if experts else [1]
    # Routed experts need ranks with tokens of their own.
    sequence_parallel = True if experts and tp > 1 else draw(_FLAG)
    attention = "flash" if cp > 1 else draw(st.sampled_from(["flash", "fused-softmax", "unfused"]))
    name = draw(st.sampled_from(STACK_NAMES))
    stack = named_stack(name)
    zero = draw(st.integers(0, stack.zero_in_pipeline if pp > 1 else stack.most_zero))
    can_tie = zero < 3 or pp == 1
    return small_job(
        small_model(
            layers=pp * vpp * draw(st.sampled_from([1, 2])),
            tied_embeddings=can_tie and draw(st.booleans()),
            experts=experts,
        ),
        gpus=tp * cp * dp * pp,
        profile=profile or draw(profiles()),
        global_batch=micro_batch * microbatches * dp,
        micro_batch=micro_batch,
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=draw(st.sampled_from(degrees)),
        ep_dispatch=draw(st.sampled_from(DISPATCHERS)) if experts else "all_to_all",
        etp=1 if experts else None,
        schedule=schedule,
        cp_method=cp_method,
        cp_heads=draw(st.sampled_from([1, cp])) if cp_method == "all_to_all+ring" else 1,
        attention=attention,
        zero=zero,
        zero_group=draw(st.sampled_from([0, 1, dp * cp])) if zero else 0,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        stack=name,
        reshard_after_forward=draw(_FLAG) if zero == 3 else None,
        sequence_parallel=sequence_parallel,
        overlap_grad_reduce=draw(_FLAG),
        overlap_param_gather=draw(_FLAG),
        overlap_p2p=draw(_FLAG),
        overlap_tp=draw(_FLAG),
    )


@st.composite
def profiles(draw: st.DrawFn) -> HardwareProfile:
    """Links from slow to fast, with and without interference on four multiprocessors."""
    rates = st.sampled_from(["10 MB/s", "1 GB/s", "100 GB/s"])
    sm_count = draw(st.integers(0, 3))
    return network_profile(
        {"bandwidth": draw(rates), "sm_count": sm_count},
        {"nic": draw(rates), "sm_count": sm_count},
    )


@dataclass(frozen=True)
class EqualPasses:
    """Costs of a pipeline whose every stage takes the same time.

    Attributes:
        forward_s, backward_s: Time of one pass of one stage [s]; backward halves where
            it is split.
        saved_bytes, working_bytes: Memory of one pass [B].
    """

    forward_s: float = 1.0
    backward_s: float = 2.0
    saved_bytes: float = 1.0
    working_bytes: float = 0.0

    def work(self, run: Slice, phase: Phase, exposed: float = 1.0, host_s: float = 0.0) -> Work:
        """One pass."""
        del run, exposed
        seconds = {Phase.FORWARD: self.forward_s, Phase.BACKWARD: self.backward_s}
        return Work(seconds.get(phase, self.backward_s / 2) + host_s)

    def exposed_share(self, run: Slice, phase: Phase, beside: Slice, beside_phase: Phase) -> float:
        """Nothing hides."""
        del run, phase, beside, beside_phase
        return 1.0

    def saved(self, run: Slice) -> Memory:
        """Activations of one pass."""
        del run
        return ((Owner.ACTIVATIONS, self.saved_bytes),)

    def forward(self, run: Slice) -> ForwardMemory:
        """Nothing is held that is not saved."""
        return ForwardMemory((), self.saved(run), ())

    def backward(
        self, run: Slice, made_bytes: float = 0.0, *, makes_gradients: bool = False
    ) -> BackwardMemory:
        """Everything is there until the end."""
        del made_bytes, makes_gradients
        return BackwardMemory((), self.saved(run), ((Owner.TEMPORARIES, self.working_bytes),))

    def half_working(self, run: Slice, phase: Phase) -> Memory:
        """Held during a half of backward."""
        del run, phase
        return ((Owner.TEMPORARIES, self.working_bytes),)

    def router_graphs(self, run: Slice) -> Memory:
        """Nothing stays."""
        del run
        return ()

    def added_at_once(self, run: Slice) -> float:
        """Nothing is added up."""
        del run
        return 0.0

    @property
    def waiting_gradient(self) -> Memory:
        """Nothing waits."""
        return ()

    def halves(self, run: Slice) -> Halves:
        """Nothing is freed half-way."""
        return whole_until_the_end(self.saved(run), ())


class NoDataParallel:
    """Attaches nothing to a pipeline."""

    repeats_passes = True

    def __init__(self) -> None:
        self.ranks: defaultdict[int, RankState] = defaultdict(RankState)

    def forward_runs(self, run: Slice, *, is_first: bool) -> list[Slice]:
        """One piece."""
        del is_first
        return [run]

    def makes_gradients(self, *, is_first: bool) -> bool:
        """None."""
        del is_first
        return False

    def backward_runs(self, run: Slice, *, is_first: bool, reduces: bool) -> list[Slice]:
        """One piece."""
        del is_first, reduces
        return [run]

    def before(self, rank: int, run: Slice, *, is_first: bool, is_forward: bool) -> Gather:
        """Waits for nothing."""
        del rank, run, is_first, is_forward
        return Gather()

    def launched_after(self, rank: int) -> tuple[int, ...]:
        """Nothing holds the host up."""
        del rank
        return ()

    def reads_weights(self, run: Slice) -> bool:
        """Nothing is gathered."""
        del run
        return False

    def weights_in_turn(
        self, run: Slice, *, is_forward: bool, in_attention: bool = False
    ) -> Memory:
        """Nothing is gathered."""
        del run, is_forward, in_attention
        return ()

    def reduces_after(self, *, is_last: bool, ends_turn: bool) -> bool:
        """Never."""
        del is_last, ends_turn
        return False

    def makes_in_order(self, run: Slice) -> bool:
        """No gradients are made."""
        del run
        return True

    def after_use(self, rank: int, operation: int, run: Slice, *, is_forward: bool) -> Memory:
        """Gives nothing back."""
        del rank, operation, run, is_forward
        return ()

    def after_backward(
        self, rank: int, operation: int, run: Slice, *, is_last: bool, reduces: bool
    ) -> Memory:
        """Gives nothing back."""
        del rank, operation, run, is_last, reduces
        return ()


def pipeline_program(
    schedule: str,
    stages: int,
    chunks: int,
    microbatches: int,
    *,
    costs: EqualPasses | None = None,
    transfer: Work | None = None,
    blocking: bool = False,
    order: list[list[Slot]] | None = None,
    forward_host_s: float = 0.0,
) -> Program:
    """The passes of a schedule with given times; transfers are free unless given."""
    program = Program(
        classes=tuple(RankClass(f"stage {rank}", rank, 1, rank) for rank in range(stages)),
        ports={"link": 1.0},
    )
    pipeline = Pipeline(
        order=order or schedule_order(schedule, stages, chunks, microbatches),
        placement=schedule_info(schedule).placement,
        chunks=chunks,
        runs=[Slice(stage, stage + 1) for stage in range(stages * chunks)],
        blocking=blocking,
        forward_host_s=forward_host_s,
    )
    moved = transfer or Work(0.0)
    add_pipeline(program, pipeline, costs or EqualPasses(), lambda *_: moved, NoDataParallel())
    return program


def replayed_pipeline(schedule: str, stages: int, chunks: int, microbatches: int) -> Timeline:
    """The same, run without contention."""
    return replay(pipeline_program(schedule, stages, chunks, microbatches))
