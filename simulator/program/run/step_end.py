"""What happens between the last backward of a step and the first forward of the next?

What is left of the gradients is reduced, copies of weights inside the pipeline add theirs up, ranks
agree on the gradient norm, each updates what it holds, and updated weights are handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.described.job import Job
from simulator.program.communication import Call, collectives_work
from simulator.program.grid.rank_groups import model_group, pipeline_pair
from simulator.program.ir import (
    Category,
    Collective,
    Kind,
    Memory,
    Operation,
    Part,
    Program,
    Scope,
    Stream,
    Work,
)
from simulator.program.price.matrix_optimizers import gathers
from simulator.program.price.update_time import optimizer_work
from simulator.program.run.data_parallel import DataParallel
from simulator.program.states.parameter_server import server_update_work
from simulator.program.states.pipeline_ranks import PipelineRanks
from simulator.program.states.resident import padded_vocab, shard_numel, state_bytes
from simulator.program.states.update_memory import UpdateMemory, update_memory


class StepEnd:
    """Emits what ends the steps of one job into a program.

    Args:
        job: The job.
        program: Appended to.
        ranks: What each pipeline rank holds.
        data_parallel: What reduces its gradients and hands its weights out.
        host_s_per_kernel: Host time of a launch [s].
        left: What backward leaves on the one rank of a pipeline, free after its update.
    """

    def __init__(
        self,
        job: Job,
        program: Program,
        ranks: PipelineRanks,
        data_parallel: DataParallel,
        host_s_per_kernel: float,
        left: Memory = (),
    ) -> None:
        self.job, self.program, self.ranks = job, program, ranks
        self.data_parallel = data_parallel
        self.host_s_per_kernel, self.left = host_s_per_kernel, left
        self._update_memory: dict[int, UpdateMemory] = {}
        """Of the first of all ranks that hold the same."""

    def update_alone(self, rank: int) -> None:
        """The update of a rank that waits for no other, in the middle of its order."""
        reduced = self.data_parallel.finish_gradients(rank, self.ranks.stand_ins_of(rank))
        self._add_update(rank, reduced)

    def add(self) -> None:
        """Left-over reductions, the gradient norm over all stages, and the update."""
        stages = range(self.ranks.stages)
        reduced = [
            self.data_parallel.finish_gradients(rank, self.ranks.stand_ins_of(rank))
            for rank in stages
        ]
        own = [index for waits in reduced for index in waits]
        shared = self._add_shared_reductions(own)
        if self.job.choices.post_validates:
            self._add_updates_in_turn(reduced)
        elif self._ranks_agree:
            waits = self._add_norm([*own, *shared])
            for rank in stages:
                self._add_update(rank, waits)
        else:
            for rank, waits in enumerate(reduced):
                self._add_update(rank, [*waits, *shared])

    def _add_norm(self, after: Sequence[int]) -> Sequence[int]:
        """The one number that all ranks agree on; what an update waits for."""
        group, network = self._norm_group, self.job.cluster.profile.network
        if group.ranks == 1:
            return after
        kind, num_bytes = CollectiveKind.ALL_REDUCE, 4.0
        cost = collective_cost(kind, num_bytes, group, network)
        part = Part("gradient_norm", Category.OPTIMIZER, cost.seconds)
        issued = Collective(part.name, Kind(kind), "all", group.ranks, num_bytes, cost.port_bytes)
        work = Work(cost.seconds, (part,), num_bytes=num_bytes, collectives=(issued,))
        lanes = tuple((rank, Stream.COMPUTE) for rank in range(self.ranks.stages))
        norm = Operation(
            Kind.ALL_REDUCE, lanes, work, Category.OPTIMIZER, tuple(after), scope=Scope.WORLD
        )
        return [self.program.add(norm)]

    def _add_updates_in_turn(self, reduced: Sequence[Sequence[int]]) -> None:
        """Every rank adds its share to the norm of the ranks before it, and updates at once.

        The few bytes that travel take no time here, and no update is taken back.

        Source: post-validation, arXiv 2401.10241, section 4.
        """
        backward_ends = [
            self.program.lanes[rank, Stream.COMPUTE][-1] for rank in range(self.ranks.stages)
        ]
        for rank, waits in enumerate(reduced):
            before = backward_ends[max(0, rank - 1) : rank]
            self._add_update(rank, [*waits, *before])

    def _add_update(self, rank: int, after: Sequence[int]) -> None:
        offload, runs = self.job.plan.offload, self.ranks.stand_ins_of(rank)
        after, last = self._add_momentum_gather(rank, after), -1
        backward_end = self.program.lanes[rank, Stream.COMPUTE][-1]
        if not offload.optimizer or offload.share < 1:
            last = self._add_update_on_gpu(rank, after)
        if offload.optimizer:
            last = self._add_update_on_host(rank, (*after, backward_end))
        self.program.operations[last].gives = self.data_parallel.freed_gradients(rank) + self.left
        self.data_parallel.updated(rank, last)
        self.data_parallel.finish_weights(rank, runs)
        if host_s := self.job.choices.step_host_s:
            self._add_host_work(rank, "between_steps", host_s)

    def _add_host_work(
        self, rank: int, name: str, seconds: float, after: Sequence[int] = ()
    ) -> int:
        """Time in which a GPU waits for its host; the id of the operation."""
        work, lane = Work(seconds, (Part(name, Category.HOST, seconds),)), (rank, Stream.COMPUTE)
        wait = Operation(Kind.OPTIMIZER, (lane,), work, Category.OPTIMIZER, tuple(after))
        return self.program.add(wait)

    def _add_momentum_gather(self, rank: int, after: Sequence[int]) -> Sequence[int]:
        """Brings matrices together that shards cut, for Muon; what its update waits for."""
        if self.job.plan.optimizer != "muon":
            return after
        calls = gathers(self.job, self.ranks.runs_of(rank))
        if not calls:
            return after
        network, category = self.job.cluster.profile.network, Category.DATA_PARALLEL
        gather = Operation(
            Kind.ALL_GATHER, ((rank, Stream.COMPUTE),), collectives_work(calls, network, category),
            category, tuple(after), scope=Scope.SHARDS,
        )  # fmt: skip
        return [self.program.add(gather)]

    def _add_update_on_gpu(self, rank: int, after: Sequence[int]) -> int:
        """The update of what is on the GPU, or of servers that a worker waits for; its id."""
        job, parameters, runs = self.job, self.ranks.parameters(rank), self.ranks.runs_of(rank)
        if job.choices.data_parallelism.has_servers:
            work = server_update_work(job, parameters)
        else:
            work = optimizer_work(job, parameters, runs, self.host_s_per_kernel)
        like = self.ranks.like[rank]
        if like not in self._update_memory:
            copied = self.ranks.copies_embedding
            self._update_memory[like] = update_memory(job, runs, tied_copy=copied)
        held = self._update_memory[like]
        update = Operation(
            Kind.OPTIMIZER, ((rank, Stream.COMPUTE),), work, Category.OPTIMIZER, tuple(after),
            holds=held.holds, turns=held.turns,
        )  # fmt: skip
        return self.program.add(update)

    def _add_update_on_host(self, rank: int, after: Sequence[int]) -> int:
        """The update of what is on the host; the id of what the GPU does when it has ended."""
        waits = self.data_parallel.update_on_host(rank, self.ranks.parameters(rank), after)
        # The GPU goes on when its host knows that all copies are there.
        launch_s = self.job.cluster.profile.kernels.launch_s
        return self._add_host_work(rank, "wait_for_host", launch_s, waits)

    def _add_shared_reductions(self, after: Sequence[int]) -> list[int]:
        """Adds up gradients of what two ranks of the pipeline hold copies of."""
        if self.ranks.model_copies > 1:
            return self._add_copy_reductions(after)
        if not self.ranks.copies_embedding:
            return []
        grid = self.job.plan.tensor_grid
        ways = grid.weight_ways if grid else self.job.choices.tensor_ranks
        numel = padded_vocab(self.job) * self.job.model.hidden // ways
        return [self._add_pair_reduction(0, self.ranks.head_rank, numel, after)]

    def _add_copy_reductions(self, after: Sequence[int]) -> list[int]:
        """Ranks at equal distance from both ends hold the same two stages and add them up.

        Source: Chimera (arXiv 2107.06925, section 3.2). Frameworks may merge this with the
        data-parallel reduction.
        """
        reductions, stages = [], self.ranks.stages
        for rank in range(stages // 2):
            held = self.ranks.parameters(rank)
            is_sharded = self.job.choices.shards_states
            numel = shard_numel(self.job, held) if is_sharded else held.trained
            reductions.append(self._add_pair_reduction(rank, stages - 1 - rank, numel, after))
        return reductions

    def _add_pair_reduction(self, first: int, last: int, numel: float, after: Sequence[int]) -> int:
        num_bytes = numel * state_bytes(self.job).reduced
        group, kind = pipeline_pair(self.job, first, last), CollectiveKind.ALL_REDUCE
        call = Call("shared_gradients", kind, "pp", group, num_bytes)
        work = collectives_work((call,), self.job.cluster.profile.network, Category.PIPELINE)
        lanes = ((first, Stream.COMPUTE), (last, Stream.COMPUTE))
        return self.program.add(
            Operation(Kind.ALL_REDUCE, lanes, work, Category.PIPELINE, after=tuple(after))
        )

    @property
    def _norm_group(self) -> Group:
        """Ranks whose gradients differ: those that share the model, its experts, or shards."""
        spreads = self.job.choices.reduces_to_shards or self.job.plan.ep > 1
        return model_group(self.job, with_shards=spreads)

    @property
    def _ranks_agree(self) -> bool:
        """Whether ranks agree on one number before they update.

        It is the norm of the gradients, or, with fp16, whether any overflowed.
        """
        return self.job.plan.takes_gradient_norm or self.job.plan.precision == "fp16"
