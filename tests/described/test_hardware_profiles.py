from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.cost.kernel_time import attention_s, gemm_s
from simulator.described.load import load_profile, profile_names

NAMES = profile_names()

NO_FASTER_IN_FP8 = {"gaudi3-128gb", "tpu-v5p", "tpu-v6e"}
"""Devices whose data sheets state one rate for products of 8 and of 16 bits."""


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    elif node is not None:
        yield ".".join(path), node


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_found_under_its_own_name(name):
    assert load_profile(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_device_kernels_and_host_has_a_source(name):
    profile = load_profile(name)
    written = profile.model_dump(by_alias=True, exclude_unset=True)
    paths = {
        path
        for block in ("device", "kernels", "host")
        for path, _ in leaves(written[block], (block,))
    }
    assert paths - set(profile.provenance) == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_source_says_which_document_table_or_reason(name):
    assert all(source.reference for source in load_profile(name).provenance.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_efficiency_exceeds_one(name):
    kernels = load_profile(name).kernels.model_dump()
    shares = {p: v for p, v in leaves(kernels) if p.endswith(("efficiency", "sustained_clock"))}
    assert shares
    assert all(0 < share <= 1 for share in shares.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_format_with_parameters_has_a_peak_that_its_products_stay_below(name):
    profile = load_profile(name)
    for precision in profile.kernels.gemm:
        seconds = gemm_s(profile, 8192, 8192, 8192, precision=precision)
        assert 2 * 8192**3 / seconds < profile.device.peak.of(precision)


def test_block_scales_change_the_peak_only_where_a_profile_says_so():
    geforce, server = (load_profile(name).device.peak for name in ("rtx-5090-32gb", "b300-sxm"))
    assert geforce.of("mxfp8") == 2 * geforce.of("fp8")
    assert server.of("mxfp8") == server.of("fp8") == server.fp8_flop_per_s
    assert server.of("nvfp4") == server.fp4_flop_per_s


@pytest.mark.parametrize("name", NAMES)
def test_sixteen_bit_peaks_are_dense(name):
    """Matrix units double from 16 bits to fp8; a sparse figure in one of them would show."""
    peak = load_profile(name).device.peak
    if peak.fp8_flop_per_s:
        factor = 1 if name in NO_FASTER_IN_FP8 else 2
        assert peak.fp8_flop_per_s == pytest.approx(factor * peak.bf16_flop_per_s, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_products_at_a_clock_that_nobody_fitted_draw_no_more_than_the_device_may(name):
    """A clock copied from a device with twice the power limit would; energies are within 5 %."""
    profile = load_profile(name)
    kernels, device = profile.kernels, profile.device
    precision = "bf16" if device.peak.bf16_flop_per_s else "fp16"
    model = kernels.gemm[precision]
    rate = device.peak.of(precision) * model.efficiency * kernels.sustained_clock
    if profile.provenance["kernels.sustained_clock"].kind == "assumed":
        assert rate * model.joule_per_operation < 1.05 * device.power_w


@pytest.mark.parametrize("name", NAMES)
def test_fused_attention_stays_below_the_peak_in_both_directions(name):
    profile = load_profile(name)
    precision = "fp16" if profile.device.peak.fp16_flop_per_s else "bf16"
    for backward, products in ((False, 2), (True, 5)):
        seconds = attention_s(
            profile, batch=1, heads=32, kv_heads=8, seq_q=8192, seq_kv=8192, head_dim=128,
            causal=False, backward=backward, precision=precision,
        )  # fmt: skip
        flop = 2 * products * 32 * 8192 * 8192 * 128
        assert flop / seconds < profile.device.peak.of(precision)
