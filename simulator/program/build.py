"""How does a job become a program?

The pipeline gives every rank its order of forward and backward passes; costs come from
the stages, transfers from the network, and data parallelism adds its collectives. One
class of ranks stands for all data-, tensor- and context-parallel copies of a stage,
because on a uniform cluster they do the same; where they do not, or everybody is to be
seen, :mod:`simulator.program.unlike.unfold` splits the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import NamedTuple

from simulator.cost.collectives import Group
from simulator.cost.host import host_ports_bytes_per_s
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.grid.expert_tokens import ExpertShare
from simulator.program.grid.rank_groups import first_rank, pipeline_pair
from simulator.program.ir import Memory, Owner, Program, RankClass, Work, total_bytes
from simulator.program.layer.adapters import training_faults
from simulator.program.layer.layer_kinds import model_parts
from simulator.program.price.schedule_costs import transfer_work
from simulator.program.price.stage_cost import StageCosts
from simulator.program.run.data_parallel import DataParallel
from simulator.program.run.data_parallel_exchanges import Exchanges
from simulator.program.run.host_copies import (
    ActivationOffload,
    kept_activations,
    offloaded_layers,
)
from simulator.program.run.order import StepOrder, boundary_buffers
from simulator.program.run.pipeline import Pipeline, add_pipeline
from simulator.program.run.single_process import single_process_program
from simulator.program.run.step_end import StepEnd
from simulator.program.run.untrained import untrained_memory, untrained_pass
from simulator.program.states.cast_weights import cast_weight_bytes
from simulator.program.states.data_parallel_collectives import Collectives
from simulator.program.states.gather_units import Units
from simulator.program.states.gradient_buckets import bucket_memory
from simulator.program.states.outside_memory import offloaded_states, outside_memory
from simulator.program.states.parameter_server import ServerTransfers
from simulator.program.states.pipeline_ranks import PipelineRanks
from simulator.program.states.placeholder_gradients import placeholder_gradient_bytes
from simulator.program.states.resident import (
    ParameterCount,
    loading_memory,
    resident_memory,
    state_bytes,
    workspace_memory,
)
from simulator.program.states.returned_logits import returned_key_values, returned_logits_memory
from simulator.program.states.update_memory import first_states, starting_memory
from simulator.program.unlike.unfold import unfold
from simulator.schedule import Order, Slot
from simulator.schedule.unit_time import peak_in_flight

_CONTIGUOUS = frozenset({Owner.ACTIVATIONS})
"""What lies in a buffer of its own where memory is kept from fragmenting."""

_APART = Owner.GATHERED_WEIGHTS, Owner.GRADIENT_SHARDS
"""What may be allocated on streams of its own."""
"""What is allocated on another stream where the framework gathers weights on one."""

EXCHANGES: Mapping[str, Callable[[Job, Units], Exchanges]] = {
    "ddp": Collectives,
    "parameter-server": ServerTransfers,
}
"""What ranks exchange in each way of data parallelism in which each is a process of its own."""


class Steps(NamedTuple):
    """How many steps to run for one that is like any other.

    Attributes:
        before: Steps that fill the pipeline.
        after: Steps that keep it full.
    """

    before: int
    after: int

    @property
    def total(self) -> int:
        """All of them and the one between."""
        return self.before + 1 + self.after


def steps_around(job: Job) -> Steps:
    """Steps to run before and after one, so that it meets the pipeline as any other does.

    None where all ranks meet at the end of a step.
    """
    schedule = job.choices.schedule
    if not schedule.synchronous:
        microbatches, stages = job.microbatches, job.plan.pp
        return Steps(-(-2 * stages // microbatches), -(-stages // microbatches))
    if job.choices.post_validates:
        # With two ends, a rank at one of them starts its next step before the other is done.
        return Steps(1, schedule.placement.copies - 1)
    if job.plan.offload.delayed_update:
        # The update of one step is under way while the next one runs.
        return Steps(1, 0)
    return Steps(0, 0)


def check_layers(job: Job) -> None:
    """Refuse a job whose layers cannot run as its plan says.

    These rules need more than :mod:`simulator.described.rules` can know: names of parameters, and
    which strategies the parts of a layer have rules for.

    Raises:
        InputError: With all reasons.
    """
    faults = [
        fault for part in model_parts(job.model) for fault in part.unruled(job.model, job.plan)
    ]
    faults += training_faults(job.model, job.plan)
    if faults:
        raise InputError(faults)


def build_program(job: Job, *, steps: int = 1, unfolded: bool = False) -> Program:
    """The program of one training step, or of several, one after another.

    Args:
        job: What to run.
        steps: How many steps.
        unfolded: Whether every rank is a class of its own. Otherwise ranks that must
            do the same are one class.

    Raises:
        InputError: The plan asks for something that cannot run; the error says why.
    """
    check_layers(job)
    if job.choices.data_parallelism.is_one_process:
        return single_process_program(job, steps, each_rank=unfolded)
    order = StepOrder(job)

    def stages(variant: Job, share: ExpertShare | None) -> Program:
        return _Builder(variant, order, share).build(steps)

    differ = job.perturbations or job.cluster.pools or job.plan.expert_load is not None
    if unfolded or differ:
        return unfold(job, stages, each_rank=unfolded)
    return stages(job, None)


def folded_program(job: Job, share: ExpertShare | None = None) -> Program:
    """The program of one step with one class of ranks per stage, whatever makes ranks differ.

    Args:
        job: What to run; each rank is a process of its own.
        share: What the experts of every rank receive; None is as much as all others.

    Raises:
        InputError: The plan asks for something that cannot run; the error says why.
    """
    check_layers(job)
    return _Builder(job, StepOrder(job), share).build(1)


class _Held(NamedTuple):
    """What a rank holds because of its layers alone, as of a :class:`RankClass`."""

    resident: Memory
    loading: Memory
    starting: Memory
    first_states: Memory


class _Builder:
    """Puts the pieces of one job together."""

    def __init__(self, job: Job, order: StepOrder, share: ExpertShare | None) -> None:
        self.job = job
        self.profile = job.cluster.profile
        self.order = order
        self.schedule = order.schedule
        self.costs = StageCosts(job, share)
        # Where states or activations leave the GPU, it matters which layers they are of.
        alike = order.schedule.placement.copies == 1 and not job.plan.offload.is_used
        self.ranks = PipelineRanks(job, order.schedule, self.costs.units.layers if alike else ())
        self.buffers = boundary_buffers(job, order.schedule, self.costs.boundary_bytes)
        self._transfers: dict[tuple[int, int], Work] = {}
        self._of_pairs: dict[Group, Work] = {}
        self._held: dict[int, _Held] = {}

    def build(self, steps: int) -> Program:
        """The program of some steps."""
        job = self.job
        program = self._empty_program()
        data_parallel = DataParallel(job, program, *self._exchanges())
        left = [block for run in self.ranks.runs for block in self.costs.router_graphs(run)]
        step_end = StepEnd(
            job, program, self.ranks, data_parallel, self.costs.host_s_per_kernel, tuple(left)
        )
        add_passes = partial(
            add_pipeline, program, costs=self.costs, transfer_work=self._transfer_work,
            attachment=data_parallel,
        )  # fmt: skip
        copies = None
        if job.plan.offload.activations is not None:
            copies = ActivationOffload(job, self.costs, program)
        if not self.schedule.synchronous:
            pipeline = self._pipeline(self.order.slots(steps * job.microbatches), copies)
            add_passes(pipeline, update=step_end.update_alone)
            return program
        for step in range(steps):
            order = _later(self.order.slots(job.microbatches), step * job.microbatches)
            add_passes(self._pipeline(order, copies))
            step_end.add()
        return program

    def _exchanges(self) -> tuple[Units, Exchanges]:
        units = Units(self.job, self.ranks.copies_embedding, self.ranks.stand_ins)
        return units, EXCHANGES[self.job.plan.data_parallel](self.job, units)

    def _empty_program(self) -> Program:
        job, choices = self.job, self.job.choices
        order = self.order.slots(job.microbatches)
        return Program(
            classes=tuple(self._rank_class(rank, slots) for rank, slots in enumerate(order)),
            ports={**self.profile.network.ports_bytes_per_s, **self._host_ports},
            device=self.profile.device,
            common=self.profile.common,
            allocator=choices.allocator,
            outside=outside_memory(job),
            preallocated=_CONTIGUOUS if job.plan.contiguous_checkpoints else frozenset(),
            own_stream=frozenset(compress(_APART, choices.own_streams)),
        )

    @property
    def _host_ports(self) -> Mapping[str, float]:
        """Links to the host, where anything passes them."""
        offload, cluster = self.job.plan.offload, self.job.cluster
        return host_ports_bytes_per_s(cluster) if offload.is_used else {}

    def _pipeline(self, order: Order, copies: ActivationOffload | None) -> Pipeline:
        """All slots of an order; without a flush, updates lie between them."""
        job, schedule = self.job, self.schedule
        every = 1 if schedule.updates_every_microbatch else job.microbatches
        return Pipeline(
            order=order,
            placement=schedule.placement,
            chunks=job.plan.vpp,
            runs=[*map(self.ranks.stand_ins.of, self.ranks.runs)],
            stand_ins=self.ranks.stand_ins,
            blocking=not job.choices.overlaps_transfers,
            forward_host_s=job.choices.forward_host_s,
            buffers=self.buffers,
            update_every=0 if schedule.synchronous else every,
            copies=copies,
            untrained=untrained_pass(job),
            returned=returned_key_values(job),
        )

    def _rank_class(self, rank: int, slots: Sequence[Slot]) -> RankClass:
        job, parameters, like = self.job, self.ranks.parameters(rank), self.ranks.like[rank]
        if like not in self._held:
            self._held[like] = self._held_by(like)
        held = self._held[like]
        resident = held.resident + self.buffers.resident(slots, job.microbatches)
        stashed = self.schedule.weight_versions(rank, self.ranks.stages) - 1
        if stashed:
            stashed_bytes = stashed * parameters.trained * state_bytes(job).gathered
            resident += ((Owner.STASHED_WEIGHTS, stashed_bytes),)
        host, nvme = self._host_memory(rank, slots, parameters)
        return RankClass(
            name=f"stage {rank}",
            stage=rank,
            count=job.cluster.gpus // self.ranks.stages,
            first_rank=first_rank(job, rank),
            resident=resident,
            loading=held.loading,
            starting=held.starting,
            first_states=held.first_states,
            host=host,
            nvme=nvme,
        )

    def _held_by(self, rank: int) -> _Held:
        job, parameters, runs = self.job, self.ranks.parameters(rank), self.ranks.runs_of(rank)
        resident = resident_memory(job, parameters) + bucket_memory(job, parameters)
        resident += untrained_memory(job)
        resident += workspace_memory(job) + returned_logits_memory(job)
        placeholder_bytes = placeholder_gradient_bytes(job, runs)
        if placeholder_bytes:
            resident += ((Owner.PLACEHOLDER_GRADIENTS, placeholder_bytes),)
        cast_bytes = cast_weight_bytes(job, runs)
        if cast_bytes:
            resident += ((Owner.WEIGHTS, cast_bytes),)
        copied = self.ranks.copies_embedding
        return _Held(
            resident,
            loading_memory(job, parameters),
            starting_memory(job, runs, tied_copy=copied),
            first_states(job, runs, tied_copy=copied),
        )

    def _host_memory(
        self, rank: int, slots: Sequence[Slot], parameters: ParameterCount
    ) -> tuple[Memory, Memory]:
        offload = self.job.plan.offload
        if not offload.is_used:
            return (), ()
        host, nvme = offloaded_states(self.job, parameters)
        if offload.activations is not None:
            count = offloaded_layers(self.job)
            layers = (i for run in self.ranks.runs_of(rank) for i in range(run.first, run.end))
            kept = (kept_activations(self.costs, layer) for layer in layers if layer < count)
            away_bytes = peak_in_flight(slots) * math.fsum(map(total_bytes, kept))
            host += ((Owner.ACTIVATIONS, away_bytes),)
        return host, nvme

    def _transfer_work(self, source: int, target: int) -> Work:
        known = self._transfers.get((source, target))
        if known is not None:
            return known
        pair = pipeline_pair(self.job, source, target)
        if pair not in self._of_pairs:
            self._of_pairs[pair] = transfer_work(self.job, self.costs.boundary_bytes, pair)
        work = self._transfers[source, target] = self._of_pairs[pair]
        return work


def _later(order: Order, microbatches: int) -> Order:
    """The order with its microbatches counted on from an earlier step's."""
    if not microbatches:
        return order
    return [
        [slot._replace(microbatch=slot.microbatch + microbatches) for slot in slots]
        for slots in order
    ]
