"""How long does it take until the engine has the newest weights, and the GPUs their states?

Both are bounds by bandwidth alone: latencies, and changes of layout inside a GPU, are left out.
"""

from __future__ import annotations

from simulator.planning.reinforcement.rl_job import RLJob
from simulator.program.ir import Owner
from simulator.program.layer.model_totals import parameter_count
from simulator.results.step import StepResult

_BF16_BYTES = 2.0
_STATES = (Owner.OPTIMIZER_STATES, Owner.MASTER_WEIGHTS)


def refit_s(job: RLJob) -> float:
    """Time in which every engine gets all weights in bf16 [s].

    On shared GPUs, ranks that hold parts of the model gather them; what a GPU lacks arrives over
    the slowest link between them. From other GPUs, weights are broadcast over the fabric, as fast
    as one network card receives.
    """
    training, network = job.training, job.training.cluster.profile.network
    weights_bytes = _BF16_BYTES * parameter_count(job.training.model)
    scale_up, fabric = network.scale_up, network.fabric
    fabric_rate = fabric.nic_bytes_per_s * fabric.efficiency
    if not job.shares_gpus:
        return weights_bytes / fabric_rate
    copies = 1 if training.choices.shards_weights else training.dp // training.plan.ep
    ranks = training.cluster.gpus // max(1, copies)
    rate = scale_up.bandwidth_bytes_per_s * scale_up.efficiency
    if ranks > scale_up.gpus:
        rate = fabric_rate
    return weights_bytes * (1 - 1 / ranks) / rate


def states_move_s(job: RLJob, step: StepResult) -> float:
    """Time in which shared GPUs move optimizer states to the host and back [s].

    Args:
        job: What runs.
        step: An update, whose fullest GPU is the last to be done.
    """
    if not (job.shares_gpus and job.moves_states):
        return 0.0
    held = max(sum(each.by_owner.get(owner, 0.0) for owner in _STATES) for each in step.memory)
    host = job.training.cluster.profile.host
    return 2 * held * host.gpus_per_pcie_link / host.pcie_bytes_per_s
