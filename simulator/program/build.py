"""How does a job become a program?

The pipeline gives every rank its order of forward and backward passes; costs come from
the stages, transfers from the network, and data parallelism adds its collectives. One
class of ranks stands for all data-, tensor- and context-parallel copies of a stage,
because on a uniform cluster they do the same; where they do not, or everybody is to be
seen, :mod:`simulator.program.unfold` splits the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.cost.host import host_ports_bytes_per_s
from simulator.program.asynchronous import refuse_shared_updates
from simulator.program.communication import Call, collectives_work
from simulator.program.communicators import communicator_bytes
from simulator.program.data_parallel import DataParallel
from simulator.program.expert_load import ExpertShare
from simulator.program.ir import (
    Category,
    Collective,
    Kind,
    Memory,
    Operation,
    Owner,
    Part,
    Program,
    RankClass,
    Scope,
    Stream,
    Work,
    total_bytes,
)
from simulator.program.layout import Slice, cut, stage_slices
from simulator.program.muon import gathers
from simulator.program.offload import ActivationOffload, HostLinks
from simulator.program.offloaded_states import offloaded_states
from simulator.program.optimizer import optimizer_work
from simulator.program.order import StepOrder, boundary_buffers, job_schedule, overlaps_p2p
from simulator.program.parameter_server import ParameterServer, server_update_work
from simulator.program.pipeline import Pipeline, add_pipeline
from simulator.program.ranks import first_rank, model_group, pipeline_pair
from simulator.program.single_process import single_process_program
from simulator.program.stage import StageCosts
from simulator.program.states import (
    ParameterCount,
    added_up,
    copies_embedding,
    padded_vocab,
    resident_memory,
    shard_numel,
    slice_parameters,
    state_bytes,
)
from simulator.program.transfers import transfer_work
from simulator.program.unfold import unfold
from simulator.program.update_memory import update_memory
from simulator.schedule import Order, Slot
from simulator.spec.job import Job

_CONTIGUOUS = frozenset({Owner.ACTIVATIONS})
"""What lies in a buffer of its own where memory is kept from fragmenting."""


_GATHERED = frozenset({Owner.GATHERED_WEIGHTS})


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
    schedule = job_schedule(job)
    if not schedule.synchronous:
        microbatches, stages = job.microbatches, job.plan.pp
        return Steps(-(-2 * stages // microbatches), -(-stages // microbatches))
    if _post_validates(job):
        # With two ends, a rank at one of them starts its next step before the other is done.
        return Steps(1, schedule.placement.copies - 1)
    if job.plan.offload.delayed_update:
        # The update of one step is under way while the next one runs.
        return Steps(1, 0)
    return Steps(0, 0)


def build_program(job: Job, *, steps: int = 1, unfolded: bool = False) -> Program:
    """The program of one training step, or of several, one after another.

    Args:
        job: What to run.
        steps: How many steps.
        unfolded: Whether every rank is a class of its own. Otherwise ranks that must
            behave alike are one class.

    Raises:
        InputError: The plan asks for something that cannot run; the error says why.
    """
    if job.plan.data_parallel == "data-parallel":
        return single_process_program(job, steps, each_rank=unfolded)
    order = StepOrder(job)

    def folded_program(variant: Job, share: ExpertShare | None) -> Program:
        return _Builder(variant, order, share).build(steps)

    differ = job.perturbations or job.cluster.pools or job.plan.expert_load is not None
    if unfolded or differ:
        return unfold(job, folded_program, each_rank=unfolded)
    return folded_program(job, None)


def _post_validates(job: Job) -> bool:
    """Whether stages update without waiting for each other.

    By default only where the backward is split, as in the implementation that does it.
    """
    given, stack = job.plan.post_validation, job.plan.stack
    if given is not None:
        return given
    return job.plan.pp > 1 and stack.post_validation and job_schedule(job).splits_backward


class _Builder:
    """Puts the pieces of one job together."""

    def __init__(self, job: Job, order: StepOrder, share: ExpertShare | None = None) -> None:
        self.job = job
        self.profile = job.cluster.profile
        self.order = order
        self.schedule = order.schedule
        self.costs = StageCosts(job, share)
        self.stages = job.plan.pp
        self._transfers: dict[tuple[int, int], Work] = {}
        self._held: dict[int, ParameterCount] = {}
        self.buffers = boundary_buffers(job, self.schedule, self.costs.boundary_bytes)
        refuse_shared_updates(job, self.schedule)
        self.runs = stage_slices(job, self.stages * job.plan.vpp)
        attachment = ParameterServer if self._has_servers else DataParallel
        self.data_parallel = attachment(job, self.profile.network, self._copies_embedding)
        offloads = job.plan.offload.activations is not None
        self.activations = ActivationOffload(job, self.costs, HostLinks(job)) if offloads else None

    def build(self, steps: int) -> Program:
        job, network = self.job, self.profile.network
        order = self.order.slots(job.microbatches)
        program = Program(
            classes=tuple(self._rank_class(rank, slots) for rank, slots in enumerate(order)),
            ports={**network.ports_bytes_per_s, **self._host_ports},
            sm_count=self.profile.device.sm_count,
            expandable_segments=job.plan.stack.expandable_segments,
            communicator_bytes=communicator_bytes(job),
            preallocated=_CONTIGUOUS if job.plan.contiguous_checkpoints else frozenset(),
            own_stream=_GATHERED if job.plan.stack.gathers_on_own_stream else frozenset(),
        )
        if self.schedule.synchronous:
            for step in range(steps):
                self._add_pipeline(program, _later(order, step * job.microbatches))
                self._add_optimizer(program)
        else:
            self._add_pipeline(program, self.order.slots(steps * job.microbatches))
        return program

    @property
    def _host_ports(self) -> Mapping[str, float]:
        """Links to the host, where anything passes them."""
        offload, cluster = self.job.plan.offload, self.job.cluster
        return host_ports_bytes_per_s(cluster) if offload.is_used else {}

    def _add_pipeline(self, program: Program, order: Order) -> None:
        """All slots of an order; without a flush, updates lie between them."""
        alone = not self.schedule.synchronous
        every = 1 if self.schedule.updates_every_microbatch else self.job.microbatches
        pipeline = Pipeline(
            order=order,
            placement=self.schedule.placement,
            chunks=self.job.plan.vpp,
            runs=self.runs,
            blocking=not overlaps_p2p(self.job, self.schedule),
            forward_host_s=self.job.plan.stack.forward_host_s,
            buffers=self.buffers,
            update_every=every if alone else 0,
            copies=self.activations,
        )

        def update(rank: int) -> None:
            reduced = self.data_parallel.finish_gradients(program, rank, self._rank_runs(rank))
            self._add_update(program, rank, reduced)

        add_pipeline(
            program, pipeline, self.costs, self._transfer_work, self.data_parallel,
            update if alone else None,
        )  # fmt: skip

    def _rank_class(self, rank: int, slots: Sequence[Slot]) -> RankClass:
        ranks = self.job.cluster.gpus // self.stages
        parameters = self._parameters(rank)
        resident = resident_memory(self.job, parameters)
        resident += self.buffers.resident(slots, self.job.microbatches)
        stashed = self.schedule.weight_versions(rank, self.stages) - 1
        if stashed:
            stashed_bytes = stashed * parameters.total * state_bytes(self.job).gathered
            resident += ((Owner.STASHED_WEIGHTS, stashed_bytes),)
        host, nvme = self._host_memory(rank, parameters)
        return RankClass(
            f"stage {rank}", rank, ranks, first_rank(self.job, rank), resident, host, nvme
        )

    def _host_memory(self, rank: int, parameters: ParameterCount) -> tuple[Memory, Memory]:
        """What one rank keeps in host memory and on NVMe."""
        if not self.job.plan.offload.is_used:
            return (), ()
        host, nvme = offloaded_states(self.job, parameters)
        if self.activations is not None:
            layers = [layer for run in self._rank_runs(rank) for layer in cut(run, 1)]
            kept = (block for layer in layers for block in self.activations.kept_away(layer))
            host += ((Owner.ACTIVATIONS, total_bytes(kept)),)
        return host, nvme

    def _parameters(self, rank: int) -> ParameterCount:
        if rank not in self._held:
            runs, copied = self._rank_runs(rank), self._copies_embedding
            counts = (slice_parameters(self.job, run, tied_copy=copied) for run in runs)
            self._held[rank] = added_up(counts)
        return self._held[rank]

    @property
    def _has_servers(self) -> bool:
        return self.job.plan.data_parallel == "parameter-server"

    @property
    def _head_rank(self) -> int:
        """Rank that holds the head; beside the embedding where the pipeline comes back."""
        return self.schedule.placement.rank(len(self.runs) - 1, self.stages)

    @property
    def _copies_embedding(self) -> bool:
        return self._model_copies == 1 and copies_embedding(self.job) and self._head_rank != 0

    @property
    def _model_copies(self) -> int:
        """Copies of the model that one pipeline holds: two where it runs in both directions."""
        return self.schedule.placement.copies

    def _rank_runs(self, rank: int) -> list[Slice]:
        """Layers of every virtual stage of a rank, of all copies of the model."""
        placement, chunks = self.schedule.placement, self.job.plan.vpp
        return [
            self.runs[placement.model_stage(stage, self.stages, chunks)]
            for stage in range(placement.num_virtual_stages(self.stages, chunks))
            if placement.rank(stage, self.stages) == rank
        ]

    def _transfer_work(self, source: int, target: int) -> Work:
        """One boundary activation, or its gradient, from one stage to another."""
        if (source, target) not in self._transfers:
            self._transfers[source, target] = transfer_work(
                self.job, self.costs.boundary_bytes, source, target
            )
        return self._transfers[source, target]

    def _add_optimizer(self, program: Program) -> None:
        """Left-over reductions, the gradient norm over all stages, and the update."""
        reduced = [
            self.data_parallel.finish_gradients(program, rank, self._rank_runs(rank))
            for rank in range(self.stages)
        ]
        waits = [index for rank_waits in reduced for index in rank_waits]
        own = len(waits)
        self._add_tied_embedding_reduction(program, waits)
        if self._model_copies > 1:
            self._add_copy_reductions(program, waits)
        if _post_validates(self.job):
            self._add_updates_in_turn(program, reduced)
            return
        if not self._meets:
            for rank, rank_waits in enumerate(reduced):
                self._add_update(program, rank, [*rank_waits, *waits[own:]])
            return
        if self._norm_group.ranks > 1:
            lanes = tuple((rank, Stream.COMPUTE) for rank in range(self.stages))
            work = self._norm_work()
            norm = Operation(
                Kind.ALL_REDUCE, lanes, work, Category.OPTIMIZER, tuple(waits), scope=Scope.WORLD
            )
            waits = [program.add(norm)]
        for rank in range(self.stages):
            self._add_update(program, rank, waits)

    def _add_updates_in_turn(self, program: Program, reduced: Sequence[Sequence[int]]) -> None:
        """Every rank adds its share to the norm of the ranks before it, and updates at once.

        The few bytes that travel take no time here, and no update is taken back.

        Source: post-validation, arXiv 2401.10241, section 4.
        """
        backward_ends = [program.lanes[rank, Stream.COMPUTE][-1] for rank in range(self.stages)]
        for rank, waits in enumerate(reduced):
            before = backward_ends[max(0, rank - 1) : rank]
            self._add_update(program, rank, [*waits, *before])

    def _add_update(self, program: Program, rank: int, after: Sequence[int]) -> None:
        """The optimizer of one rank, and the weights that it hands out."""
        parameters, lane = self._parameters(rank), ((rank, Stream.COMPUTE),)
        runs = self._rank_runs(rank)
        if self.job.plan.optimizer == "muon" and (calls := gathers(self.job, runs)):
            gather = collectives_work(calls, self.profile.network, Category.DATA_PARALLEL)
            after = (program.add(Operation(
                Kind.ALL_GATHER, lane, gather, Category.DATA_PARALLEL, tuple(after),
                scope=Scope.SHARDS,
            )),)  # fmt: skip
        offload, last = self.job.plan.offload, -1
        if not offload.optimizer or offload.share < 1:
            work = self._update_work(parameters, runs)
            held = update_memory(self.job, runs, tied_copy=self._copies_embedding)
            last = program.add(Operation(
                Kind.OPTIMIZER, lane, work, Category.OPTIMIZER, tuple(after),
                holds=held.holds, turns=held.turns,
            ))  # fmt: skip
        if offload.optimizer:
            waits = self.data_parallel.update_on_host(program, rank, parameters, after)
            # The GPU goes on when its host has been told that all copies are there.
            launch_s = self.profile.kernels.launch_s
            work = Work(launch_s, (Part("wait_for_host", Category.HOST, launch_s),))
            last = program.add(Operation(Kind.OPTIMIZER, lane, work, Category.OPTIMIZER, waits))
        program.operations[last].gives = self.data_parallel.freed_gradients(rank)
        self.data_parallel.updated(rank, last)
        self.data_parallel.finish_weights(program, rank, runs)

    def _add_tied_embedding_reduction(self, program: Program, waits: list[int]) -> None:
        """First and last stage hold copies of an embedding and add up its gradient."""
        if not self._copies_embedding:
            return
        grid = self.job.plan.tensor_grid
        ways = grid.weight_ways if grid else self.job.plan.tp
        numel = padded_vocab(self.job) * self.job.model.hidden // ways
        waits.append(self._add_pair_reduction(program, 0, self._head_rank, numel, waits))

    def _add_copy_reductions(self, program: Program, waits: list[int]) -> None:
        """Ranks at equal distance from both ends hold the same two stages and add them up.

        Source: Chimera (arXiv 2107.06925, section 3.2). Frameworks may merge this with the
        data-parallel reduction.
        """
        pairs = [(rank, self.stages - 1 - rank) for rank in range(self.stages // 2)]
        ready = list(waits)
        for first, last in pairs:
            parameters = self._parameters(first)
            numel = shard_numel(self.job, parameters) if self.job.plan.zero else parameters.total
            waits.append(self._add_pair_reduction(program, first, last, numel, ready))

    def _add_pair_reduction(
        self, program: Program, first: int, last: int, numel: float, after: Sequence[int]
    ) -> int:
        """An all_reduce of gradients between two pipeline ranks."""
        num_bytes = numel * state_bytes(self.job).reduced
        group, kind = pipeline_pair(self.job, first, last), CollectiveKind.ALL_REDUCE
        call = Call("shared_gradients", kind, "pp", group, num_bytes)
        work = collectives_work((call,), self.profile.network, Category.PIPELINE)
        lanes = ((first, Stream.COMPUTE), (last, Stream.COMPUTE))
        return program.add(
            Operation(Kind.ALL_REDUCE, lanes, work, Category.PIPELINE, after=tuple(after))
        )

    @property
    def _norm_group(self) -> Group:
        """Ranks whose gradients differ: those that share the model, or shards of gradients."""
        plan = self.job.plan
        first_level = 2 if plan.stack.shards_whole_parameters else 1
        return model_group(self.job, with_shards=plan.zero >= first_level)

    @property
    def _meets(self) -> bool:
        """Whether ranks agree on one number before they update.

        It is the norm of the gradients, or, with fp16, whether any overflowed.
        """
        return self.job.plan.takes_gradient_norm or self.job.plan.precision == "fp16"

    def _norm_work(self) -> Work:
        """The all_reduce of one number over all ranks whose gradients differ."""
        group = self._norm_group
        kind, num_bytes = CollectiveKind.ALL_REDUCE, 4.0
        cost = collective_cost(kind, num_bytes, group, self.profile.network)
        part = Part("gradient_norm", Category.OPTIMIZER, cost.seconds)
        issued = Collective(part.name, Kind(kind), "all", group.ranks, num_bytes, cost.port_bytes)
        return Work(cost.seconds, (part,), num_bytes=num_bytes, collectives=(issued,))

    def _update_work(self, parameters: ParameterCount, runs: Sequence[Slice]) -> Work:
        if self._has_servers:
            return server_update_work(self.job, parameters)
        return optimizer_work(self.job, parameters, runs, self.costs.host_s_per_kernel)


def _later(order: Order, microbatches: int) -> Order:
    """The order with its microbatches counted on from an earlier step's."""
    if not microbatches:
        return order
    return [
        [slot._replace(microbatch=slot.microbatch + microbatches) for slot in slots]
        for slots in order
    ]
