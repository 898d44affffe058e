"""Days, money and energy of a campaign: can every factor be checked by hand?"""

from __future__ import annotations

import pytest

from simulator.described.campaign import Checkpoint
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.campaign.capacity import (
    Capacity,
    Refusal,
    capacity,
    cluster_sizes,
    compare_clusters,
    fastest_within_budget,
    smallest_in_time,
)
from simulator.planning.campaign.checkpoints import Spent, checkpoint_bytes, checkpoint_cost
from simulator.planning.campaign.factors import factors
from simulator.planning.campaign.goodput import goodput, hazards
from simulator.planning.campaign.training_run import annuity
from tests.planning.closed_forms import expected_wall_s

DAY = 86400.0
SYSTEM = {
    "on_demand": "3.6 USD/h",
    "reserved": {"gpu": "1.8 USD/h", "term": "10 d"},
    "owned": {"gpu": "36525 USD", "lifetime": "3652.5 d"},
    "power": {"gpu_busy": "600 W", "gpu_waiting": "200 W", "host": "1600 W", "network": "800 W"},
}
SITE = {"pue": 1.25, "grid": "100 g/kWh", "electricity": "0.2 USD/kWh"}
FAILURES = {"node": {"mtbf": "200 h"}, "detection": "60 s", "restart": "240 s"}


def job(**campaign):
    return job_from_document(
        {
            "model": {"layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
            "batch": {"global": 64, "seq_len": 1024},
            "campaign": {"tokens": "2B", "systems": {"h100-sxm-80gb": SYSTEM}, **campaign},
        }
    )


def test_steps_are_rounded_up_and_time_is_steps_times_step_over_goodput():
    found = capacity(job(goodput=0.8))
    time = found.time
    assert time.steps == -(-2_000_000_000 // 65536) == 30518
    assert time.wall_s == pytest.approx(30518 * found.step.step_time_s / 0.8)
    assert time.gpu_s == pytest.approx(16 * time.wall_s)


def test_the_interval_of_a_run_is_that_of_its_step_and_failures_widen_it():
    calm = capacity(job(goodput=0.8))
    low_s, high_s = (
        calm.time.wall_s * s / calm.step.step_time_s for s in calm.step.step_time_band_s
    )
    assert calm.time.ends.interval_s == pytest.approx((low_s, high_s), rel=1e-6)
    failing = {
        "failures": FAILURES | {"node": {"mtbf": "2 h"}},
        "checkpoint": {"storage": "1 GB/s"},
    }
    risky = capacity(job(**failing), members=20).time
    ratio = {"risky": risky.ends.interval_s[1] / risky.ends.interval_s[0], "calm": high_s / low_s}
    assert ratio["risky"] > ratio["calm"]
    assert {each.name: each.origin for each in factors(calm)}["duration, at least"].endswith("step")


def test_pauses_lengthen_the_run_by_their_number_and_are_no_steps_that_count():
    pauses = {
        "evaluation": {"every_steps": 1000, "duration": "60 s"},
        "data": {"every_steps": 1, "duration": "100 ms"},
    }
    calm = capacity(job(pauses=pauses)).time
    assert calm.pauses_s == {"evaluation": 30 * 60.0, "data": pytest.approx(3051.8)}
    assert calm.wall_s == pytest.approx(calm.work_s + 1800 + 3051.8)
    assert calm.goodput_share is None
    failing = job(pauses=pauses, failures=FAILURES, checkpoint={"storage": "1 GB/s"})
    time = capacity(failing, members=20).time
    assert time.goodput.spent_s[Spent.PAUSES] == pytest.approx(1800 + 3051.8)
    assert time.goodput.spent_s[Spent.PRODUCTIVE] == pytest.approx(time.work_s)
    assert sum(time.goodput.spent_s.values()) == pytest.approx(time.wall_s)
    assert time.goodput_share * time.wall_s == pytest.approx(time.work_s)
    best = max(each.goodput for each in time.goodput.tried)
    assert best == pytest.approx(time.goodput_share, rel=0.01)


def test_energy_is_the_sum_of_its_parts_by_hand():
    found = capacity(job(goodput=0.8, site=SITE))
    time, drawn = found.time, found.energy
    busy_s = time.work_s * time.busy_share
    assert drawn.gpu_busy_j == pytest.approx(16 * 600 * busy_s)
    assert drawn.gpu_waiting_j == pytest.approx(16 * 200 * (time.wall_s - busy_s))
    assert drawn.host_j + drawn.network_j == pytest.approx(2 * 2400 * time.wall_s)
    parts = drawn.gpu_busy_j + drawn.gpu_waiting_j + drawn.host_j + drawn.network_j
    assert drawn.building_j == pytest.approx(0.25 * parts)
    assert drawn.total_j == pytest.approx(1.25 * parts)
    assert drawn.co2_kg == pytest.approx(drawn.total_j / 3.6e6 * 0.1)


def test_money_of_each_way_of_paying_by_hand():
    found = capacity(job(goodput=0.8, site=SITE))
    hours, spent = found.time.gpu_s / 3600, found.money
    assert spent.on_demand_usd == pytest.approx(3.6 * hours)
    assert spent.reserved_usd == pytest.approx(1.8 * 240 * 16)
    assert spent.reserved_idle_share == pytest.approx(1 - found.time.wall_s / (10 * DAY))
    # 36525 USD over 3652.5 days are 10 USD a day.
    assert spent.depreciation_usd == pytest.approx(hours / 24 * 10)
    assert spent.electricity_usd == pytest.approx(found.energy.total_j / 3.6e6 * 0.2)
    assert spent.owned_usd == spent.depreciation_usd + spent.electricity_usd
    assert spent.cheapest == ("owned", spent.owned_usd)


def test_an_annuity_pays_back_price_and_interest():
    assert annuity(1000, 0.0, 4) == 250
    rate, years = 0.08, 4
    present = sum(annuity(1000, rate, years) / (1 + rate) ** year for year in range(1, years + 1))
    assert present == pytest.approx(1000)


def test_what_is_not_given_stays_open_and_says_which_field_to_set():
    bare = capacity(job(systems={}))
    assert (bare.time.goodput_share, bare.energy.total_j, bare.money.cheapest) == (None,) * 3
    opens = {factor.name: factor.origin for factor in factors(bare) if factor.amount is None}
    assert "--set 'campaign.systems.h100-sxm-80gb.on_demand=… USD/h'" in opens["cost, on demand"]
    assert "--set campaign.site.pue" in opens["energy, cooling and building"]
    assert "campaign.failures" in opens["goodput"]


def test_without_tokens_there_is_no_campaign():
    with pytest.raises(InputError, match=r"campaign\.tokens: is missing"):
        capacity(job(tokens=None))


def test_goodput_meets_the_closed_form_within_its_own_error():
    checkpoint = {"storage": "1 GB/s", "size": "20 GB", "interval": "1000 s"}
    base = job(failures=FAILURES, checkpoint=checkpoint)
    found = goodput(base, 2e6, members=400)
    # Two nodes of 200 h each; the checkpoint is read back after each failure.
    expected = expected_wall_s(2e6, 1000, 20, 60 + 240 + 20, 100 * 3600)
    assert found.mtbf_s == pytest.approx(100 * 3600)
    assert abs(found.wall_s - expected) < 3.5 * found.wall_error_s
    assert sum(found.spent_s.values()) == pytest.approx(found.wall_s, rel=1e-12)
    assert goodput(base, 2e6, members=400) == found


def test_the_interval_that_is_taken_is_the_best_of_those_tried():
    base = job(failures=FAILURES, checkpoint={"storage": "1 GB/s", "size": "60 GB"})
    found = goodput(base, 3e7, members=20)
    best = max(found.tried, key=lambda each: each.goodput)
    assert found.interval_s == best.interval_s
    assert found.first_guess_s / 2 <= best.interval_s <= 2 * found.first_guess_s


@pytest.mark.parametrize("mode", ["asynchronous", "in-memory"])
def test_checkpoints_beside_training_cost_less_than_standing_still(mode):
    where = {} if mode == "in-memory" else {"storage": "1 GB/s"}
    still = job(failures=FAILURES, checkpoint={"storage": "1 GB/s", "size": "60 GB"})
    beside = job(failures=FAILURES, checkpoint={"mode": mode, "size": "60 GB", **where})
    assert goodput(beside, 1e7, members=30).share > goodput(still, 1e7, members=30).share


@pytest.mark.parametrize("kind", ["node", "gpu", "link"])
@pytest.mark.parametrize("hours", [10, 1e6])
def test_rates_are_parts_over_mtbf(kind, hours):
    failures = {kind: {"mtbf": f"{hours!r} h"}, "detection": "0 s", "restart": "0 s"}
    base = job(failures=failures, checkpoint={"storage": "1 GB/s"})
    (hazard,) = hazards(base, base.campaign.failures)
    parts = {"node": 2, "gpu": 16, "link": 16}[kind]
    assert hazard.rate_per_s == pytest.approx(parts / hours / 3600)


def test_a_checkpoint_of_bloom_is_as_large_as_its_authors_say():
    # 2.3 TB in full and 329 GB of weights (BigScience, model page); they count in powers of 1024.
    bloom = job_from_document(
        {
            "model": "bloom-176b",
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 384},
            "batch": {"global": 2048, "seq_len": 2048},
            "plan": {"tp": 4, "pp": 12, "first_stage_layers": 5, "last_stage_layers": 5},
        }
    )
    assert checkpoint_bytes(bloom) / 2**40 == pytest.approx(2.3, rel=0.03)


def test_a_checkpoint_takes_its_bytes_over_the_rate():
    still = checkpoint_cost(job(), Checkpoint(storage="1 GB/s", size="8 GB"))
    assert (still.stall_s, still.write_s, still.load_s) == (8, 0, 8)
    asynchronous = Checkpoint(mode="asynchronous", storage="1 GB/s", size="8 GB")
    beside = checkpoint_cost(job(), asynchronous)
    assert beside.stall_s == pytest.approx(8e9 / 16 / 52e9)
    assert (beside.write_s, beside.load_s) == (8, 8)


def test_two_shares_of_a_checkpoint_must_fit_into_a_node():
    with pytest.raises(InputError, match="an in-memory checkpoint keeps 8000 GB on each node"):
        checkpoint_cost(job(), Checkpoint(mode="in-memory", size="8 TB"))


def test_the_smallest_cluster_in_time_is_the_smallest_of_all_that_are():
    base = job(goodput=0.9)
    sizes = cluster_sizes(base)
    assert sizes == [1, 2, 4, 8, 16, 32, 64]
    found = list(compare_clusters(base, ["h100-sxm-80gb"], sizes))
    ran = [each for each in found if isinstance(each, Capacity)]
    times = {each.time.gpus: each.time.wall_s for each in ran}
    best = smallest_in_time(ran, times[8])
    assert best.time.gpus == 8
    assert all(times[gpus] > times[8] for gpus in sizes if gpus < 8)
    assert smallest_in_time(ran, 1.0) is None
    affordable = fastest_within_budget(ran, ran[-1].money.cheapest[1] * 10)
    assert affordable.time.wall_s == min(times.values())
    assert fastest_within_budget(ran, 1e-6) is None


def test_a_budget_without_a_price_asks_for_one():
    ran = [capacity(job(systems={}))]
    with pytest.raises(InputError, match=r"on_demand"):
        fastest_within_budget(ran, 1e6)


def test_a_cluster_that_cannot_run_says_why():
    (found,) = compare_clusters(job(goodput=1.0), ["h100-sxm-80gb"], [48])
    assert isinstance(found, Refusal)
    assert "batch.global" in found.reason


@pytest.mark.parametrize(
    ("campaign", "says"),
    [
        ({"tokens": "15 TB"}, "must be a number of tokens"),
        ({"goodput": 0.9, "failures": FAILURES}, "remove goodput"),
        ({"goodput": 0.9, "pauses": {"data": {"every_steps": 1, "duration": "1 s"}}}, "both"),
        (
            {"failures": {"detection": "1 s", "restart": "1 s"}},
            "needs at least one cause of failure",
        ),
        ({"checkpoint": {}}, "give storage"),
        ({"checkpoint": {"mode": "in-memory", "storage": "1 GB/s"}}, "uses no storage"),
        ({"checkpoint": {"storage": "1 GB/s", "interference": 0.1}}, "do not interfere"),
        ({"systems": {"h100": {"on_demand": 2.5}}}, "needs its unit"),
        ({"site": {"pue": 0.9}}, "greater than or equal to 1"),
    ],
)
def test_a_wrong_campaign_says_what_is_wrong(campaign, says):
    with pytest.raises(InputError, match=says):
        job(**campaign)


@pytest.mark.parametrize("given", [15_000_000_000_000, "15T", "15 T", "1.5e13", "15e3B", 1.5e13])
def test_tokens_are_a_number_or_a_text(given):
    assert job(tokens=given).campaign.tokens == 15 * 10**12


@pytest.mark.parametrize(
    "given", ["15 TB", "-1", 0.5, 0, float("inf"), float("nan"), True, "1e999"]
)
def test_what_is_no_number_of_tokens_is_refused(given):
    with pytest.raises(InputError, match="must be a number of tokens"):
        job(tokens=given)


def test_failures_without_a_checkpoint_are_asked_for():
    with pytest.raises(InputError, match=r"campaign\.checkpoint: is missing"):
        capacity(job(failures=FAILURES))


@pytest.mark.parametrize(
    ("mtbf", "repair", "restart", "reason"),
    [
        ("10 h", "100 d", "60 s", "waits for repairs; give more than 0 spare_nodes"),
        ("60 s", "0 s", "1 h", "before work is saved; restart or save faster"),
    ],
)
def test_a_campaign_that_never_ends_says_what_keeps_it(mtbf, repair, restart, reason):
    failures = {"node": {"mtbf": mtbf, "repair": repair}, "detection": "60 s", "restart": restart}
    checkpoint = {"mode": "synchronous", "storage": "10 GB/s", "interval": "10 min"}
    hopeless = job(failures=failures, checkpoint=checkpoint)
    with pytest.raises(InputError, match=reason):
        goodput(hopeless, 100 * DAY, members=2)
