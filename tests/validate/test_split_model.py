"""Real numbers: two gloo ranks that share the reference model compute what one computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from simulator.described.model import Experts, Model
from simulator.errors import UnsupportedError
from simulator.program.layer.model_totals import parameter_count
from simulator.validate.torch_run.reference_model import reference_model, token_loss
from simulator.validate.torch_run.split_model import split_experts
from tests.jobs import gpt_model, small_model

RANKS = 2
EXACT = {"rtol": 0.0, "atol": 1e-10}
EXPERTS = Experts(
    count=4, top_k=2, ffn_hidden=32, shared_ffn_hidden=16, shared_gate=True, first_dense_layers=1
)


def models() -> dict[str, Model]:
    return {
        "llama": small_model(layers=2, vocab=96),
        "tied": small_model(layers=2, vocab=96, tied_embeddings=True),
        "gpt": gpt_model(
            layers=2, vocab=96, qkv_bias=True, attention_output_bias=True, mlp_bias=True,
            norm_bias=True,
        ),
        "experts": small_model(layers=2, vocab=96, experts=EXPERTS),
    }  # fmt: skip


def tokens(model: Model, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.vocab, (2, 16), generator=generator)


def built(model: Model) -> nn.Module:
    torch.manual_seed(7)
    net = reference_model(model)
    for parameter in net.parameters():
        # Norms and biases, too, so that nothing cancels.
        nn.init.normal_(parameter, std=0.3)
    return net


def share(whole: Tensor, part: Tensor, rank: int) -> Tensor:
    """The share of a weight (or its gradient) that a rank holds, by the shape it kept."""
    for axis, size in enumerate(whole.shape):
        if part.shape[axis] != size:
            return whole.chunk(RANKS, axis)[rank]
    return whole


def compare_gradients(whole: nn.Module, split: nn.Module, rank: int) -> None:
    expected = dict(whole.named_parameters())
    compared = 0
    for name, parameter in split.named_parameters():
        plain = name.replace(".block.", ".").replace("mlp.experts.", "mlp.")
        gradient = expected[plain].grad
        assert gradient is not None
        # What is added to every key of a query changes no softmax.
        assert gradient.abs().max() > 1e-6 or plain.endswith("key.bias"), plain
        torch.testing.assert_close(parameter.grad, share(gradient, parameter, rank), **EXACT)
        compared += 1
    assert compared


def check_experts(rank: int, name: str) -> None:
    """Each rank has sequences of its own; weights that all hold add their gradients up."""
    model = models()[name]
    whole, split = built(model), built(model)
    batches = [tokens(model, seed) for seed in range(RANKS)]
    logits = whole(torch.cat(batches))
    token_loss(logits, torch.cat(batches)).backward()
    split_experts(split)
    own_logits = split(batches[rank])
    (token_loss(own_logits, batches[rank]) / RANKS).backward()
    torch.testing.assert_close(own_logits, logits.chunk(RANKS)[rank], **EXACT)
    for path, parameter in split.named_parameters():
        if not path.endswith(("experts.gate", "experts.up", "experts.down")):
            dist.all_reduce(parameter.grad)
    compare_gradients(whole, split, rank)


CHECKS = {"experts": check_experts}


def run_rank(rank: int, folder: str) -> None:
    """All checks in one process, because starting one takes longer than they do."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    try:
        for name, check in CHECKS.items():
            try:
                check(rank, name)
                outcome = ""
            except AssertionError as error:
                outcome = f"rank {rank}: {error}"
            Path(folder, f"{name}.{rank}").write_text(outcome)
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, (str(folder),), nprocs=RANKS)
    return {
        name: "".join((folder / f"{name}.{rank}").read_text() for rank in range(RANKS))
        for name in CHECKS
    }


@pytest.mark.parametrize("name", CHECKS)
def test_a_model_split_over_two_ranks_gives_the_unsplit_numbers(name, outcomes):
    """To 1e-10 in fp64."""
    assert not outcomes[name]


@pytest.mark.parametrize("model", models().values())
def test_the_reference_model_has_the_parameters_of_our_table(model):
    held = sum(parameter.numel() for parameter in reference_model(model).parameters())
    assert held == parameter_count(model)


def test_what_has_no_reference_is_refused_by_name():
    with pytest.raises(UnsupportedError) as raised:
        reference_model(small_model(qk_norm="head"))
    assert raised.value.faults[0].path == "model.qk_norm"
