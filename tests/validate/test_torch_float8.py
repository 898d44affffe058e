"""Training in 8 bits: right to the formats' rounding, and what is predicted of it is what runs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from simulator.errors import UnsupportedError  # noqa: E402
from simulator.program.grid.stage_layers import Slice  # noqa: E402
from simulator.program.layer.layer_kinds import layer_kinds  # noqa: E402
from simulator.program.layer.pieces import MemoryBound  # noqa: E402
from simulator.program.price.stage_cost import StageCosts  # noqa: E402
from simulator.ranks.world import World  # noqa: E402
from simulator.validate.torch_run.reference_model import (  # noqa: E402
    Float8Linear,
    Layer,
    use_float8,
)
from simulator.validate.torch_run.supported_plan import (  # noqa: E402
    as_torch_runs_it,
    check_strategies,
)
from simulator.validate.torch_run.train_and_compare import validate_torch  # noqa: E402
from tests.program.kernels_of_torch import moved_bytes  # noqa: E402
from tests.saved_by_torch import saved_bytes  # noqa: E402
from tests.validate.test_torch_strategies import EXPERTS, job  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = World(0, 1, "gloo", torch.device("cpu"))
GPU = World(0, 1, "nccl", torch.device("cuda", 0))
E4M3_STEP, E5M2_STEP = 2.0**-4, 2.0**-3
"""Largest relative error of rounding to three and to two bits of fraction."""


def eight(gpus: int = 1, model=None, **plan):
    changes = {"cluster.profile": "h100-sxm-80gb", "plan.precision": "fp8"}
    given = job(gpus, model).replace({**changes, "batch.global": gpus, "model.layers": 2})
    return given.replace({f"plan.{name}": value for name, value in plan.items()})


def gradients(layer, hidden, upstream):
    leaf = hidden.clone().requires_grad_()
    output = layer(leaf)
    wanted = [leaf, layer.weight, layer.bias]
    return [output, *torch.autograd.grad(output, wanted, upstream)]


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_an_eight_bit_product_and_its_gradients_are_those_of_32_bits_but_for_rounding(magnitude):
    torch.manual_seed(0)
    plain = torch.nn.Linear(64, 48)
    hidden, upstream = magnitude * torch.randn(2, 16, 64), torch.randn(2, 16, 48) / magnitude
    exact = gradients(plain, hidden, upstream)
    rounded = gradients(Float8Linear(plain), hidden, upstream)
    weight, rows, given = plain.weight.abs(), hidden.abs().flatten(0, 1), upstream.abs()
    given = given.flatten(0, 1)
    # The sum of what each term of a product may be off by; the smallest numbers are rounded
    # to steps of the format's least, far below the mean.
    forward = (rows @ weight.T) * 2.2 * E4M3_STEP
    bounds = [forward, given @ weight, given.T @ rows]
    bounds[1:] = [each * (E4M3_STEP + E5M2_STEP) * 1.1 for each in bounds[1:]]
    for ours, theirs, bound in zip(rounded, exact, bounds, strict=False):
        error = (ours - theirs).flatten(0, -2).abs()
        assert (error <= bound).all()
        assert (ours - theirs).norm() < 0.1 * theirs.norm()
        assert error.max() > 0
    assert torch.equal(rounded[3], exact[3])


def test_operands_of_powers_of_two_lose_nothing():
    """Largest magnitudes of 1.75 times one make the scales powers of two as well."""
    plain = torch.nn.Linear(32, 16, bias=False)
    choices = torch.tensor([1.75, -1.0, 0.5, -0.25])
    with torch.no_grad():
        plain.weight.copy_(choices.repeat(128).view(16, 32))
    hidden = choices.repeat(128).view(16, 32).clone().requires_grad_()
    upstream = choices.repeat(64).view(16, 16)
    exact = torch.autograd.grad(plain(hidden), [hidden, plain.weight], upstream)
    layer = Float8Linear(plain)
    output = layer(hidden)
    assert torch.equal(output, plain(hidden))
    for ours, theirs in zip(
        torch.autograd.grad(output, [hidden, layer.weight], upstream), exact, strict=True
    ):
        assert torch.equal(ours, theirs)


def test_zeros_have_a_product():
    layer = Float8Linear(torch.nn.Linear(16, 16, bias=False))
    assert torch.equal(layer(torch.zeros(16, 16)), torch.zeros(16, 16))


@pytest.mark.parametrize("facts", [{}, {"keeps_master_weights": False}])
def test_a_step_in_eight_bits_runs_and_holds_what_is_predicted(facts):
    given = eight(stack={"base": "torch", **facts})
    report = validate_torch(given, backend="fake", steps=1)
    assert report is not None
    assert report.step.measured > 0
    owners = {pair.name: pair for pair in report.memory}
    for owner in ("weights", "optimizer_states"):
        assert owners[owner].measured == pytest.approx(owners[owner].predicted, rel=0.01)
    assert not any("float8" in note for note in report.notes)


def test_one_rank_of_many_trains_sharded_in_eight_bits():
    report = validate_torch(eight(8, zero=3, recompute="full"), backend="fake", steps=1)
    assert report is not None
    assert report.step.measured > 0


def one_layer(precision: str):
    """Pieces of a layer and the bytes that it keeps, as predicted."""
    given = as_torch_runs_it(eight(precision=precision), CPU).job
    costs = StageCosts(given)
    pieces, _ = costs.layer_pieces(layer_kinds(given.model)[0])
    part = Slice(first=0, end=1, has_embedding=False, has_head=False)
    return pieces, sum(num_bytes for _, num_bytes in costs.saved(part))


def torch_layer(precision: str, weights):
    """The layer with weights of a format, its products in 8 bits where asked, and an input."""
    given = eight()
    layer = Layer(given.model, has_experts=False).to(weights)
    if precision == "fp8":
        use_float8(layer)
    shape = given.batch.micro_batch, given.batch.seq_len, given.model.hidden
    return layer, torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_backward_finds_what_it_would_in_16_bits(weights):
    """With fp32 weights under autocast, whose casts are kept as well."""
    kept = {}
    for precision in ("bf16", "fp8"):
        layer, hidden = torch_layer(precision, weights)
        with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
            kept[precision] = saved_bytes(lambda run=layer, x=hidden: run(x), layer.parameters())
    assert kept["fp8"] == kept["bf16"]
    predicted = [one_layer(precision)[1] for precision in ("bf16", "fp8")]
    assert predicted[0] == predicted[1]


def test_casts_move_what_torch_counts():
    """Beside the products themselves, which read 8-bit operands and write 16 bits."""
    pieces = {piece.name: piece for piece in one_layer("fp8")[0]}
    casts = [pieces[f"mlp_down_{side}_cast"] for side in ("input", "weight", "output")]
    assert all(isinstance(each, MemoryBound) for each in casts)
    model, tokens = eight().model, eight().batch.seq_len
    layer = torch.nn.Linear(model.ffn_hidden, model.hidden, bias=False, dtype=torch.bfloat16)
    rows = torch.randn(tokens, model.ffn_hidden, dtype=torch.bfloat16, requires_grad=True)
    n, k, outputs = model.hidden, model.ffn_hidden, []
    forward = moved_bytes(lambda: outputs.append(Float8Linear(layer)(rows)))
    product = tokens * k + n * k + 2 * tokens * n
    assert sum(each.forward_bytes for each in casts) == pytest.approx(forward - product, rel=0.03)
    (output,), gradient = outputs, torch.randn(tokens, n, dtype=torch.bfloat16)
    backward = moved_bytes(lambda: torch.autograd.grad(output, [rows, layer.weight], gradient))
    products = (tokens * n + n * k + 2 * tokens * k) + (tokens * n + tokens * k + 2 * n * k)
    assert sum(each.backward_bytes for each in casts) == pytest.approx(
        backward - products, rel=0.03
    )


def test_a_gpu_without_eight_bit_products_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    with pytest.raises(UnsupportedError, match=r"A100.* has compute capability 8\.0.* need 8\.9"):
        check_strategies(eight(), GPU)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    check_strategies(eight(), GPU)


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("plan.tp", eight(2, tp=2, zero=3)),
        ("model.experts", eight(1, {"experts": EXPERTS})),
        ("plan.schedule", eight(2, pp=2, schedule="zb-1p")),
        ("model.ffn_hidden", eight(1, {"ffn_hidden": 120})),
        ("batch.seq_len", eight().replace({"batch.seq_len": 24})),
    ],
)
def test_a_job_without_eight_bit_products_here_is_refused(path, refused):
    with pytest.raises(UnsupportedError) as raised:
        check_strategies(refused, CPU)
    assert [fault.path for fault in raised.value.faults] == [path]
    assert all("bf16" in fault.hint or "1f1b" in fault.hint for fault in raised.value.faults)
