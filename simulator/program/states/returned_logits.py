"""What does a loop hold of the logits, and of keys and values, that its model returned?

A name in Python lives on: ``logits = model(tokens)`` stay through the loss, its backward and the
update, until the next microbatch's are there. So one copy of them is always held, but of those that
the loss keeps by itself while it lasts. Loops that call a function for forward and loss, or delete
the name before backward (torchtitan's ``del pred``), hold none.

Where layers return keys and values as well, those of a microbatch are backward's own until it ends,
and live on by that name through the next forward.

Ignores: pipelines, whose schedules take what their stages return, scores of classes, and that
latent attention returns keys and values of another width.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.grid.rank_groups import tensor_group
from simulator.program.ir import Memory, Owner
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.model_ends import returned_logits_bytes
from simulator.program.states.resident import padded_vocab


def returned_logits_memory(job: Job) -> Memory:
    """One copy of a microbatch's logits on a rank, as the model returns them."""
    model, plan, batch = job.model, job.plan, job.batch
    if not plan.holds_returned_logits or model.classes:
        return ()
    shape = microbatch_shape(plan, batch.micro_batch, batch.seq_len // plan.cp, batch.document_len)
    num_bytes = returned_logits_bytes(model, plan, shape, padded_vocab(job))
    return ((Owner.LOGITS, num_bytes),) if num_bytes else ()


def returned_key_values(job: Job) -> Memory:
    """Keys and values of all layers of the microbatch before, while a rank's forward runs."""
    model, plan, batch = job.model, job.plan, job.batch
    if not plan.holds_returned_key_values:
        return ()
    shape = microbatch_shape(plan, batch.micro_batch, batch.seq_len // plan.cp, batch.document_len)
    row_bytes = 2 * model.kv_heads * model.head_dim * shape.element_bytes
    num_bytes = model.layers * shape.tokens * row_bytes / tensor_group(job).ranks
    return ((Owner.ACTIVATIONS, num_bytes),)
