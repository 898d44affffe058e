"""Fits to training runs find what made the runs, and never see the source they are tested on."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reports.make.fit.fit_training import clocks_to_write, cross_validation, fit, loss
from reports.make.fit.training_response import CLOCK, CLOCKS, NARROW_CLOCK, Response, responses
from simulator.cells import Row, read_table
from simulator.described.load import job_from_document
from simulator.program.grid.stage_layers import Slice
from simulator.program.price.stage_cost import StageCosts
from simulator.results.step_error import shipped_errors
from simulator.schedule import Phase
from simulator.validate.published.row_facts import with_known_facts


def run(
    name: str, measured_s: float, *, profile: str = "h100-sxm-80gb", grade: str = "A",
    micro_batch: str = "1", precision: str = "bf16",
) -> Row:  # fmt: skip
    return {
        "id": name, "grade": grade, "profile": profile, "framework": "megatron",
        "measured_step_s": str(measured_s), "micro_batch": micro_batch, "seq_len": "4096",
        "hidden": "4096", "tp": "1", "precision": precision,
    }  # fmt: skip


def clock_response(row: Row) -> Response:
    """A step of one second at full clock, longer by as much as the clock is lower."""
    return Response(row, tuple(1 / value for value in CLOCKS))


def at_clock(name: str, clock: float, **more: str) -> Response:
    return clock_response(run(name, 1 / clock, **more))


def test_the_clock_that_made_the_runs_is_found_again() -> None:
    fitted = fit([at_clock("a-1", 0.8), at_clock("b-1", 0.8)])
    assert fitted["h100-sxm-80gb", CLOCK] == pytest.approx(0.8, abs=2e-3)


def test_a_step_between_two_simulated_clocks_is_exact_where_it_follows_the_clock() -> None:
    assert at_clock("a-1", 0.8).step_s(0.7) == pytest.approx(1 / 0.7)


def test_fifty_runs_of_a_source_count_no_more_than_one_that_scatters_by_nothing() -> None:
    """What runs of one source have in common is not off by less because there are many."""
    sizes = shipped_errors()
    scatter = math.hypot(sizes.noise["overall"], *sizes.alike.values())
    many = [at_clock(f"many-{i}", 0.9) for i in range(50)]
    one = at_clock("one-1", 0.8)
    at_ours, at_theirs = (loss([*many, one], clock) for clock in (0.9, 0.8))
    assert 1.0 < at_theirs / at_ours < 1 + (scatter / sizes.spread["overall"]) ** 2


def test_where_two_sources_disagree_the_one_that_is_known_better_decides() -> None:
    many = [at_clock(f"many-{i}", 0.9) for i in range(50)]
    assert fit([*many, at_clock("one-1", 0.8)])["h100-sxm-80gb", CLOCK] == pytest.approx(
        0.9, abs=2e-3
    )


def test_where_sources_disagree_evenly_the_clock_is_in_the_middle_between_them() -> None:
    """The loss is the same all the way from one to the other."""
    fitted = fit([at_clock("a-1", 0.7), at_clock("b-1", 0.8)])
    assert fitted["h100-sxm-80gb", CLOCK] == pytest.approx(0.75, abs=0.01)


def written(*runs: Response) -> dict[str, str]:
    said = clocks_to_write(fit(runs), runs, "a.csv, b.csv")
    return {profile: value for (profile, field), value in said.items() if field == CLOCK}


def test_a_fitted_clock_says_which_tables_runs_and_sources_it_is_of() -> None:
    found = written(at_clock("a-1", 0.8), at_clock("a-2", 0.8), at_clock("b-1", 0.8))
    evidence = "a.csv, b.csv: 3 runs of 2 sources"
    expected = f'{{value: 0.800, source: {{kind: fitted, reference: "{evidence}"}}}}'
    assert found["h100-sxm-80gb"] == expected
    assert 'reference: "as h100-sxm-80gb"' in found["gh200-144gb"]


def test_a_clock_that_was_published_stays() -> None:
    names = ("a-1", "a-2", "a-3")
    found = written(*(at_clock(name, 0.8, profile="tpu-v5p") for name in names))
    assert "tpu-v5p" not in found


def test_a_clock_assumed_for_the_devices_own_reason_is_not_replaced_by_a_relatives() -> None:
    """H100 PCIe has what 350 W allow, RTX 4090 products timed at the clock that they sustain."""
    found = written(*(at_clock(name, 0.8) for name in ("a-1", "a-2", "a-3")))
    assert "gh200-144gb" in found
    assert not {"h100-pcie-80gb", "rtx-4090"} & set(found)


def test_a_clock_of_two_runs_is_not_written() -> None:
    assert "h100-sxm-80gb" not in written(at_clock("a-1", 0.8), at_clock("b-1", 0.8))


@pytest.mark.parametrize("clock", [0.3, 1.4])
def test_a_source_that_needs_a_clock_that_no_device_has_tells_none(clock: float) -> None:
    """It misses something else: an exchange, a host, a kernel."""
    assert fit([at_clock("a-1", clock)]) == {}
    fitted = fit([at_clock("a-1", clock), at_clock("b-1", 0.8)])
    assert fitted["h100-sxm-80gb", CLOCK] == pytest.approx(0.8, abs=2e-3)


def test_runs_of_lower_grades_fit_nothing() -> None:
    assert fit([at_clock("a-1", 0.8, grade="B")]) == {}


def test_one_run_that_is_far_off_moves_nothing() -> None:
    close = [at_clock("a-1", 0.8), at_clock("b-1", 0.8)]
    fitted = fit([*close, clock_response(run("c-1", 10.0))])
    assert fitted["h100-sxm-80gb", CLOCK] == pytest.approx(0.8, abs=2e-3)


def test_a_source_is_predicted_from_the_others_alone() -> None:
    runs = [at_clock("a-1", 0.9), at_clock("b-1", 0.7)]
    predicted = {left.id: left for left in cross_validation(runs)}
    assert predicted["a-1"].predicted_step_s == pytest.approx(1 / 0.7, rel=5e-3)
    assert predicted["b-1"].predicted_step_s == pytest.approx(1 / 0.9, rel=5e-3)
    assert all(left.fitted for left in predicted.values())


def test_a_clock_that_a_source_tells_is_not_fitted() -> None:
    """Rows of vTrain are sums of traces on a cool device; a long run of the same job is not."""
    job = {
        "id": "x-1", "grade": "A-", "model": "gpt", "layers": "4", "hidden": "2048", "heads": "16",
        "profile": "a100-sxm-80gb", "gpus": "1", "framework": "megatron-deepspeed",
        "vocab": "51200", "tp": "1", "pp": "1", "dp": "1", "micro_batch": "4", "global_batch": "4",
        "seq_len": "1024", "precision": "fp16", "attention": "unfused", "measured_step_s": "1",
    }  # fmt: skip
    sources = ("vTrain shipped validation data, data/ground_truth_single.csv", "a paper")
    table = Path(__file__).parents[2] / "reports" / "data" / "runs_open.csv"
    own = [{**job, "source": source} for source in sources]
    rows = with_known_facts([*read_table(table, ["id"]), *own], table)[-len(own) :]
    with ThreadPoolExecutor(1) as executor:
        told, fitted = responses(rows, executor)
    assert len(set(told.simulated_s)) == 1
    assert list(fitted.simulated_s) == sorted(set(fitted.simulated_s), reverse=True)


@pytest.mark.parametrize(
    ("said", "shipped"), [("rtx-3090", "rtx-3090-24gb"), ("V100-SXM2-16GB", "v100-sxm2-32gb")]
)
def test_a_run_tells_the_clock_of_its_device_however_its_source_spells_it(said, shipped) -> None:
    job = {
        "id": "x-1", "source": "a paper", "grade": "A-", "model": "gpt", "layers": "4",
        "hidden": "1024", "heads": "16", "profile": said, "gpus": "1", "framework": "torch",
        "vocab": "51200", "tp": "1", "pp": "1", "dp": "1", "micro_batch": "4", "global_batch": "4",
        "seq_len": "1024", "precision": "fp16", "attention": "unfused", "measured_step_s": "1",
    }  # fmt: skip
    table = Path(__file__).parents[2] / "reports" / "data" / "runs_open.csv"
    rows = with_known_facts([*read_table(table, ["id"]), job], table)[-1:]
    with ThreadPoolExecutor(1) as executor:
        (run,) = responses(rows, executor)
    assert run.profile == shipped
    assert run.simulated_s[0] > run.simulated_s[-1]


def test_a_device_of_one_source_takes_the_clock_of_its_relative() -> None:
    lonely = at_clock("a-1", 0.7, profile="h200-sxm-141gb")
    relative = at_clock("b-1", 0.9, profile="h100-sxm-80gb")
    left = next(left for left in cross_validation([lonely, relative]) if left.id == "a-1")
    assert not left.fitted
    assert left.predicted_step_s == pytest.approx(1 / 0.9, rel=5e-3)


def test_runs_that_are_bound_by_launches_tell_no_clock() -> None:
    assert fit([at_clock("a-1", 0.8, micro_batch="0.1")]) == {}


def test_a_run_that_states_no_microbatch_has_one_sequence_at_least() -> None:
    assert fit([at_clock("a-1", 0.8, micro_batch="")])["h100-sxm-80gb", CLOCK] < 1.0


def test_a_small_eager_layer_takes_the_host_time_of_a_layer_of_llama_7b_in_plain_pytorch() -> None:
    stack = {
        "base": "megatron-deepspeed",
        "fused_softmax": False,
    }
    job = job_from_document({
        "model": {"base": "gpt2", "widens_scores": True},
        "cluster": {"profile": "a100-sxm-80gb", "gpus": 1},
        "batch": {"global": 1, "micro": 1, "seq_len": 64},
        "plan": {"stack": stack, "attention": "unfused", "recompute": "none"},
    })  # fmt: skip
    layer_s = StageCosts(job).work(Slice(1, 2), Phase.FORWARD).seconds
    tokens_per_s, layers = 25.5, 32
    assert layer_s == pytest.approx(1 / (tokens_per_s * layers), rel=0.05)


def test_runs_in_8_bits_tell_a_clock_of_their_own_where_their_profile_has_one() -> None:
    b200 = "b200-sxm-180gb"
    wide = at_clock("a-1", 0.8, profile=b200)
    narrow = at_clock("a-2", 0.7, profile=b200, precision="mxfp8")
    elsewhere = at_clock("a-3", 0.9, precision="fp8")
    expected = {(b200, CLOCK): 0.8, (b200, NARROW_CLOCK): 0.7, ("h100-sxm-80gb", CLOCK): 0.9}
    assert fit([wide, narrow, elsewhere]) == pytest.approx(expected, abs=2e-3)


def test_a_device_that_no_other_source_ran_in_a_format_takes_its_clock_in_others() -> None:
    wide = at_clock("a-1", 0.8, profile="b200-sxm-180gb")
    narrow = at_clock("b-1", 0.7, profile="b200-sxm-180gb", precision="fp8")
    relative = at_clock("c-1", 0.9)
    left = {each.id: each for each in cross_validation([wide, narrow, relative])}
    assert left["a-1"].predicted_step_s == pytest.approx(1 / 0.7, rel=5e-3)
    assert left["b-1"].predicted_step_s == pytest.approx(1 / 0.8, rel=5e-3)
    assert not left["a-1"].fitted
