"""Layers at either end of a model that 8- or 4-bit training leaves in bf16."""

from __future__ import annotations

import pytest

from simulator.described.load import load_profile
from simulator.errors import InputError
from simulator.program.grid.stage_layers import Slice
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.cast_weights import cast_weight_bytes
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

LAYERS = 4
BLACKWELL = load_profile("b200-sxm-180gb")


def _job(**plan):
    return small_job(
        small_model(hidden=2048, ffn_hidden=8192), profile=BLACKWELL, seq_len=4096, **plan
    )


def _seconds(job, first=0, end=LAYERS, phase=Phase.FORWARD):
    return StageCosts(job).work(Slice(first, end), phase).seconds


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_each_layer_takes_as_long_as_in_its_own_format(precision, phase):
    mixed = _job(precision=precision, first_bf16_layers=1, last_bf16_layers=2)
    narrow, wide = _job(precision=precision), _job(precision="bf16")
    for index in range(LAYERS):
        alone = wide if index in (0, 2, 3) else narrow
        mixed_s = _seconds(mixed, index, index + 1, phase)
        assert mixed_s == _seconds(alone, index, index + 1, phase)


def test_a_model_whose_layers_all_stay_in_bf16_is_one_in_bf16():
    mixed = _job(precision="fp8", first_bf16_layers=LAYERS, last_bf16_layers=1)
    assert _seconds(mixed) == _seconds(_job(precision="bf16"))


def test_8_bit_copies_are_those_of_the_other_layers():
    mixed, narrow = _job(precision="fp8", first_bf16_layers=1), _job(precision="fp8")
    one, two = (cast_weight_bytes(narrow, [Slice(0, count)]) for count in (1, 2))
    assert cast_weight_bytes(mixed, [Slice(0, 1)]) == 0
    assert cast_weight_bytes(mixed, [Slice(0, 2)]) == one
    assert cast_weight_bytes(mixed, [Slice(1, 3)]) == two


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"precision": "bf16", "first_bf16_layers": 1}, "plan.first_bf16_layers"),
        ({"precision": "fp8", "last_bf16_layers": LAYERS + 1}, "plan.last_bf16_layers"),
    ],
)
def test_only_layers_that_are_there_stay_wider_than_the_others(plan, path):
    with pytest.raises(InputError) as raised:
        _job(**plan)
    assert [fault.path for fault in raised.value.faults] == [path]
