"""What happens in a step of PyTorch's ``nn.DataParallel``: one process for all GPUs of a node?

GPU 0 holds the model, its gradients and the optimizer; the others are given a copy of the
weights for every microbatch and forget it afterwards. Each microbatch of all GPUs goes through
seven stations, one after another, nothing beside anything:

1. GPU 0 scatters token ids, 2. and broadcasts the weights; 3. all run forward; 4. GPU 0 gathers
the outputs, which are logits, 5. computes the loss of all of them, 6. and scatters its
gradient; 7. all run backward, and then the gradients of all are reduced onto GPU 0. It alone
updates. So GPU 0 fills up first, the others wait for it, and no byte is hidden.

Weights and gradients move by NCCL's broadcast and reduce, buffer by buffer, which pass each byte
once through every port; ids and outputs are plain copies, all through the port of GPU 0.
Replicas run in threads of one interpreter, whose lock lets them launch kernels in turns: host
time of forward (and of what is recomputed) counts once per replica. Backward is launched by a
thread per device outside the interpreter.

Each GPU's part of an exchange is an operation of its own, because GPU 0 moves and holds more
than the others; all parts start when all GPUs are ready.

Ignores: packing small tensors into buffers, and building the replicas' modules in Python.
Source: PyTorch, torch/nn/parallel (data_parallel.py, replicate.py, parallel_apply.py,
_functions.py, comm.py) and torch/csrc/cuda/comm.cpp; threads of backward: the documentation of
``torch.autograd.grad_mode.set_multithreading_enabled``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.cost.collectives import CollectiveKind, collective_cost
from simulator.cost.kernel_time import memory_bound_s, output_bytes
from simulator.described.cluster.network import Network
from simulator.described.job import Job
from simulator.program.communication import Call, collectives_work, communication_work
from simulator.program.grid.rank_groups import data_group
from simulator.program.grid.stage_layers import Slice, cut, ends_apart, stage_slices
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
    Stream,
    Work,
)
from simulator.program.price.stage_cost import StageCosts
from simulator.program.price.update_time import optimizer_work
from simulator.program.states.gather_units import Units
from simulator.program.states.outside_memory import outside_memory
from simulator.program.states.resident import (
    new_gradient_bytes,
    output_numel,
    resident_memory,
    slice_parameters,
    state_bytes,
)
from simulator.program.states.update_memory import update_memory
from simulator.program.unlike.conditions import (
    Condition,
    rank_conditions,
    slowed,
    with_slow_links,
    worst,
)
from simulator.schedule.slots import Phase

_BUFFER_BYTES = 10 * 2**20
"""Tensors are packed up to this size; larger ones travel alone (``broadcast_coalesced``)."""

_TOKEN_ID_BYTES = 8.0

_DOES = {
    "GPU 0": "holds the model, computes the loss of all GPUs and updates",
    "replicas": "receives the weights for every microbatch",
}
"""What each role is there for."""


def single_process_program(job: Job, steps: int, *, each_rank: bool) -> Program:
    """The program of some training steps under ``plan.data_parallel: data-parallel``.

    Args:
        job: What to run, with its perturbations.
        steps: How many steps.
        each_rank: Whether every GPU is a class of its own; else GPU 0 is one, and the others
            are one for each condition that they are in.
    """
    return _Emitter(job, _classes(job, each_rank=each_rank)).program(steps)


def coalesced(sizes: Iterable[float], buffer_bytes: float = _BUFFER_BYTES) -> list[float]:
    """Sizes of the buffers that tensors are packed into, in order, none of them divided [B]."""
    buffers: list[float] = []
    filled = 0.0
    for size in sizes:
        if filled and filled + size > buffer_bytes:
            buffers.append(filled)
            filled = 0.0
        filled += size
    return [*buffers, filled] if filled else buffers


@dataclass(frozen=True)
class _Gpus:
    """GPUs that behave groups.

    Attributes:
        rank_class: As the program shows them.
        condition: How far they are behind the profile.
    """

    rank_class: RankClass
    condition: Condition

    @property
    def is_master(self) -> bool:
        return self.rank_class.first_rank == 0


def _classes(job: Job, *, each_rank: bool) -> list[_Gpus]:
    conditions = rank_conditions(job)
    groups: dict[object, list[int]] = {}
    for rank in range(job.cluster.gpus):
        key = rank if each_rank else (rank == 0, conditions.of(0, rank))
        groups.setdefault(key, []).append(rank)
    parameters = slice_parameters(job, stage_slices(job, 1)[0])
    found = []
    for ranks in groups.values():
        condition = conditions.of(0, ranks[0])
        is_master = ranks[0] == 0
        role, said = "GPU 0" if is_master else "replicas", str(condition)
        is_plain = not each_rank and not job.perturbations
        rank_class = RankClass(
            name=role if is_plain else f"rank {ranks[0]}",
            stage=0,
            count=len(ranks),
            first_rank=ranks[0],
            resident=resident_memory(job, parameters) if is_master else (),
            ranks=tuple(ranks),
            cause=f"{_DOES[role]}; {said}" if said else _DOES[role],
            port_shares=condition.port_shares,
            role=role,
        )
        found.append(_Gpus(rank_class, condition))
    return found


class _Emitter:
    """Adds one operation after another to every class of GPUs."""

    def __init__(self, job: Job, gpus: Sequence[_Gpus]) -> None:
        self.job, self.gpus, self.ranks = job, gpus, job.cluster.gpus
        self.state = state_bytes(job)
        self.weight_bytes = self.state.weights or self.state.master
        """Of a parameter as the module has it, which ``replicate`` broadcasts [B]."""
        self.run = stage_slices(job, 1)[0]
        self.body = self.run._replace(has_loss=False)
        self.loss = self.run._replace(first=self.run.end, has_embedding=False, has_head=False)
        self.backward_runs = ends_apart(cut(self.body, 1))[::-1]
        self.parameters = slice_parameters(job, self.run)
        self.costs = StageCosts(job)
        self.loss_costs = StageCosts(_whole_batch_job(job))
        self.tokens = job.batch.micro_batch * job.batch.seq_len
        self.microbatch = -1
        self.last: dict[int, int] = {}
        """Last operation of each class."""
        self.result = Program(
            classes=tuple(each.rank_class for each in gpus),
            ports=dict(job.cluster.profile.network.ports_bytes_per_s),
            device=job.cluster.profile.device,
            common=job.cluster.profile.common,
            allocator=job.choices.allocator,
            outside=outside_memory(job),
        )

    @cached_property
    def network(self) -> Network:
        """The links as the slowest of all GPUs leaves them."""
        (slowest,) = worst(each.condition for each in self.gpus)
        return with_slow_links(self.job, slowest).cluster.profile.network

    @cached_property
    def made_gradients(self) -> Memory:
        """What backward makes on every GPU, one block for each piece of it."""
        return tuple(
            (Owner.GRADIENTS, slice_parameters(self.job, run).total * self.state.reduced)
            for run in self.backward_runs
        )

    @cached_property
    def logits_bytes(self) -> float:
        """Outputs of one GPU, those of multi-token prediction included [B]."""
        heads, numel = 1 + self.job.model.multi_token_layers, output_numel(self.job, self.tokens)
        return numel * heads * output_bytes(self.job.plan.precision)

    @cached_property
    def broadcast_work(self) -> Work:
        """The weights, from GPU 0 to all."""
        return self._nccl_work("weights", CollectiveKind.BROADCAST, self.weight_bytes)

    @cached_property
    def reduce_work(self) -> Work:
        """The gradients, from all to GPU 0."""
        return self._nccl_work("gradients", CollectiveKind.REDUCE, self.state.reduced)

    def program(self, steps: int) -> Program:
        for step in range(steps):
            for microbatch in range(self.job.microbatches):
                self.microbatch = step * self.job.microbatches + microbatch
                self._pass(is_first=microbatch == 0)
            self.microbatch = -1
            self._update()
        return self.result

    def _pass(self, *, is_first: bool) -> None:
        self._copies(Kind.SCATTER, "token_ids", self.tokens * _TOKEN_ID_BYTES)
        self._exchange(Kind.BROADCAST, self.broadcast_work)
        self._forward()
        logits = self.logits_bytes
        self._copies(Kind.GATHER, "logits", logits, holds=logits)
        self._loss()
        self._copies(Kind.SCATTER, "logit_gradients", logits, holds=logits)
        self._backward()
        self._reduce(is_first=is_first)

    def _forward(self) -> None:
        costs, run = self.costs, self.body
        for index, gpus in enumerate(self.gpus):
            forward = _operation(
                Kind.FORWARD, Category.FORWARD, costs.work(run, Phase.FORWARD), run
            )
            memory = costs.forward(run)
            forward.takes = self._replica(gpus) + memory.early
            forward.holds, forward.leaves = memory.holds, memory.later
            forward.lingers, forward.by_unit = memory.lingers, memory.by_unit
            self._compute(index, forward)

    def _replica(self, gpus: _Gpus) -> Memory:
        if gpus.is_master:
            return ()
        return ((Owner.WEIGHTS, self.parameters.total * self.weight_bytes),)

    def _loss(self) -> None:
        costs, run = self.loss_costs, self.loss
        forward = _operation(Kind.FORWARD, Category.FORWARD, costs.work(run, Phase.FORWARD), run)
        saved = costs.forward(run)
        forward.takes, forward.holds, forward.leaves = saved.early, saved.holds, saved.later
        forward.lingers, forward.by_unit = saved.lingers, saved.by_unit
        self._compute(0, forward)
        work = costs.work(run, Phase.BACKWARD)
        backward = _operation(Kind.BACKWARD, Category.BACKWARD, work, run)
        memory = costs.backward(run)
        backward.gives, backward.holds = memory.rest, memory.holds
        backward.frees = memory.freed
        self._compute(0, backward)

    def _backward(self) -> None:
        """Layer by layer, as activations go and gradients come."""
        costs = self.costs
        for run, made in zip(self.backward_runs, self.made_gradients, strict=True):
            work = costs.work(run, Phase.BACKWARD)
            waiting = costs.waiting_gradient
            for index in range(len(self.gpus)):
                backward = _operation(Kind.BACKWARD, Category.BACKWARD, work, run)
                memory = costs.backward(run, made[1], makes_gradients=True)
                backward.takes = waiting if run.has_head else ()
                backward.gives = memory.rest + (waiting if run.has_embedding else ())
                backward.holds, backward.frees = memory.holds, memory.freed
                backward.leaves = (made,)
                self._compute(index, backward)

    def _reduce(self, *, is_first: bool) -> None:
        """Sums of all gradients appear on GPU 0, are kept or added to those kept; copies go."""
        kept = new_gradient_bytes(self.job, self.parameters) if is_first else 0.0
        sums = 0.0 if kept else self.parameters.total * self.state.reduced
        adding = Work(0.0) if kept or self.ranks == 1 else self._accumulation_work()
        after = tuple(self.last.values())
        for index, gpus in enumerate(self.gpus):
            work = _joined(self.reduce_work, adding) if gpus.is_master else self.reduce_work
            reduce = _operation(Kind.REDUCE, Category.DATA_PARALLEL, work)
            reduce.after = after
            reduce.gives = self._replica(gpus) + self.made_gradients
            if gpus.is_master and kept:
                reduce.takes = ((Owner.GRADIENTS, kept),)
            if gpus.is_master and sums and self.ranks > 1:
                reduce.holds = ((Owner.GRADIENTS, sums),)
            self._add(index, reduce)

    def _accumulation_work(self) -> Work:
        """Adding sums to the gradients that are kept: read both, write one."""
        per_parameter = self.state.reduced + 2 * self.state.gradients
        num_bytes = self.parameters.total * per_parameter
        seconds = memory_bound_s(self.job.cluster.profile, num_bytes)
        return Work(seconds, (Part("accumulate", Category.DATA_PARALLEL, seconds),))

    def _update(self) -> None:
        job, parameters, runs = self.job, self.parameters, [self.run]
        work = optimizer_work(job, parameters, runs, self.costs.host_s_per_kernel)
        update = _operation(Kind.OPTIMIZER, Category.OPTIMIZER, work)
        update.holds = update_memory(job, runs).holds
        if freed := new_gradient_bytes(job, parameters):
            update.gives = ((Owner.GRADIENTS, freed),)
        self._compute(0, update)

    def _nccl_work(self, name: str, kind: CollectiveKind, element_bytes: float) -> Work:
        sizes = [count.total * element_bytes for count in Units(self.job).counts(self.run)]
        group = data_group(self.job)
        calls = [Call(name, kind, "dp", group, num_bytes) for num_bytes in coalesced(sizes)]
        return collectives_work(calls, self.network, Category.DATA_PARALLEL)

    def _exchange(self, kind: Kind, work: Work) -> None:
        after = tuple(self.last.values())
        if self.ranks > 1:
            for index in range(len(self.gpus)):
                exchange = _operation(kind, Category.DATA_PARALLEL, work)
                exchange.after = after
                self._add(index, exchange)

    def _copies(self, kind: Kind, name: str, num_bytes: float, holds: float = 0.0) -> None:
        """GPU 0 copies a part of ``num_bytes`` to or from every other GPU.

        Its port carries all parts, as every port does in an all_to_all of such parts. It holds
        all of them, the others one, if any is held.
        """
        if self.ranks == 1:
            return
        group, everyone = data_group(self.job), CollectiveKind.ALL_TO_ALL
        cost = collective_cost(everyone, self.ranks * num_bytes, group, self.network)
        after = tuple(self.last.values())
        for index, gpus in enumerate(self.gpus):
            share = 1.0 if gpus.is_master else 1 / (self.ranks - 1)
            ports = {port: size * share for port, size in cost.port_bytes.items()}
            issued = Collective(name, kind, "dp", self.ranks, num_bytes, ports)
            named = [(str(kind), replace(cost, port_bytes=ports))]
            work = communication_work(named, num_bytes, Category.DATA_PARALLEL, (issued,))
            copy = _operation(kind, Category.DATA_PARALLEL, work)
            copy.after = after
            if held := holds * (self.ranks if gpus.is_master else 1):
                copy.holds = ((Owner.LOGITS, held),)
            self._add(index, copy)

    def _compute(self, index: int, operation: Operation) -> None:
        operation.work = slowed(operation.work, self.gpus[index].condition.slowdown)
        self._add(index, operation)

    def _add(self, index: int, operation: Operation) -> None:
        operation.lanes = ((index, Stream.COMPUTE),)
        operation.microbatch = self.microbatch
        operation.chunk = 0 if self.microbatch >= 0 else -1
        self.last[index] = self.result.add(operation)


def _operation(kind: Kind, category: Category, work: Work, run: Slice | None = None) -> Operation:
    layers = (run.first, run.end) if run else (-1, -1)
    return Operation(kind, (), work, category, layers=layers)


def _whole_batch_job(job: Job) -> Job:
    """What one GPU would do alone with the microbatches of all."""
    batch = job.batch.model_copy(update={"micro_batch": job.batch.micro_batch * job.cluster.gpus})
    plan = job.plan.model_copy(update={"data_parallel": "ddp"})
    return job.model_copy(update={"batch": batch, "plan": plan})


def _joined(first: Work, second: Work) -> Work:
    return replace(first, seconds=first.seconds + second.seconds, parts=first.parts + second.parts)
