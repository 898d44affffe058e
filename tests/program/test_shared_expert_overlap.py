"""How far do exchanges of routed experts hide beside the products of the shared one?"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Part
from simulator.program.price.stage_cost import StageCosts
from simulator.schedule import Phase
from tests.jobs import network_profile, small_job
from tests.program.test_experts import expert_model
from tests.program.test_hidden_expert_exchanges import with_idle_memory

SLOW = {"bandwidth": "1 MB/s"}, {"nic": "1 MB/s"}
FAST = {"bandwidth": "1 TB/s"}, {"nic": "1 TB/s"}
EXCHANGES = ("dispatch", "combine")
PRODUCTS = ("shared_mlp_up", "shared_mlp_down")


def parts_of(phase: Phase, network: tuple[dict[str, str], ...], **plan: Any) -> dict[str, float]:
    """Seconds of one layer's parts by name; gradients of a product together."""
    model = expert_model()
    assert model.experts is not None
    experts = model.experts.model_copy(update={"shared_ffn_hidden": 256})
    model = model.model_copy(update={"experts": experts})
    profile = with_idle_memory(network_profile(*network))
    job = small_job(model, gpus=8, global_batch=8, ep=8, profile=profile, **plan)
    parts: list[Part] = StageCosts(job).work(Slice(0, 1), phase).parts
    booked = [part for part in parts if part.category is not Category.HOST]
    return {
        name: sum(part.seconds for part in booked if part.name == name)
        for name in (*EXCHANGES, *PRODUCTS)
    }


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_each_way_of_slow_tokens_hides_for_as_long_as_a_product_of_the_shared_expert(phase):
    """Source: Megatron-Core 0.16, SharedExpertMLP and MoEAlltoAllTokenDispatcher."""
    alone, beside = (parts_of(phase, SLOW, overlap_shared_expert=is_on) for is_on in (False, True))
    for exchange, product in zip(EXCHANGES, PRODUCTS, strict=True):
        assert alone[exchange] - beside[exchange] == pytest.approx(alone[product])
        assert alone[product] > 0
        assert beside[product] == alone[product]


def test_quick_tokens_slow_the_product_by_the_multiprocessors_they_hold():
    """One of the four multiprocessors."""
    alone, beside = (
        parts_of(Phase.FORWARD, FAST, overlap_shared_expert=is_on) for is_on in (False, True)
    )
    for exchange in EXCHANGES:
        assert beside[exchange] == pytest.approx(alone[exchange] / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "plan", "rule"),
    [
        ("llama3-8b", {}, "needs a model with a shared expert"),
        ("qwen3-30b-a3b", {"ep": 8}, "needs a model with a shared expert"),
        ("deepseek-v2-lite", {"ep": 8, "ep_dispatch": "all_gather"}, "tokens that go all_to_all"),
        ("deepseek-v2-lite", {"ep": 8, "overlap_ep": True}, "hides the exchanges"),
    ],
)
def test_it_is_refused_where_megatron_core_does(model, plan, rule):
    with pytest.raises(InputError, match=rule):
        job_from_document(
            {
                "model": model,
                "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
                "batch": {"global": 8, "micro": 1, "seq_len": 4096},
                "plan": {"overlap_shared_expert": True, **plan},
            }
        )
