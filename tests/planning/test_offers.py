"""Which offer to rent: are days, money and probabilities what can be worked out by hand?"""

from __future__ import annotations

import html
import math
from dataclasses import replace

import pytest

from simulator.errors import InputError
from simulator.planning.campaign.training_run import EndTimes
from simulator.planning.offers.choice import CHEAPEST, FEWEST, SAFEST, choose
from simulator.planning.offers.offer_results import OfferResult, evaluate
from simulator.planning.offers.offers_file import load_offers
from simulator.planning.offers.rental import answer_lines, numbers_of, rent, row_cells
from simulator.results.step_error import COVERAGE
from simulator.results.students_t import students_t_quantile

DAY = 86400.0
MODEL = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000}
H100 = {"profile": "h100-sxm-80gb"}


def offers(**changes):
    return {
        "offers": {
            "near": {
                "cluster": H100,
                "gpus": {"from": 1, "to": 2},
                "price": {"gpu": "3.6 USD/h", "source": "assumed"},
            },
            "later": {
                "cluster": H100,
                "gpus": 2,
                "price": {"node": "3.6 USD/h", "source": "assumed"},
                "start": "20 d",
                "term": "30 d",
            },
        },
        "workloads": {
            "tiny": {
                "job": {"model": MODEL, "batch": {"global": 2, "seq_len": 256}},
                "tokens": "2B",
                "deadline": "10 d",
            }
        },
        **changes,
    }


def row(offer, gpus, usd, late, fits=0.99):
    return OfferResult(
        "run", offer, gpus, usd=usd, late_probability=late, fits_probability=fits,
        deadline_s=10 * DAY, done_s=5 * DAY, goodput=0.9, tokens_per_s_per_gpu=1.0, step_time_s=1.0,
        gpu_usd_per_h=1.0,
    )  # fmt: skip


def test_money_is_price_times_gpus_times_the_longer_of_run_and_term():
    one, two, later = evaluate(load_offers(offers()))
    assert [one.gpus, two.gpus, later.gpus] == [1, 2, 2]
    assert two.usd == pytest.approx(3.6 / 3600 * 2 * two.wall_s)
    assert two.wall_s < 30 * DAY
    assert later.usd == pytest.approx(3.6 * 24 * 30)  # both GPUs are of one node
    assert later.done_s == pytest.approx(20 * DAY + two.wall_s)
    assert later.late_probability == 1.0
    assert later.step_time_s == two.step_time_s


def test_the_table_says_when_offers_start_where_any_of_them_waits():
    rows = evaluate(load_offers(offers()))
    numbers = numbers_of(rows)
    column = 1 + numbers.index("starts after")
    assert [row_cells(each, numbers)[column] for each in rows] == ["0.0 d", "0.0 d", "20.0 d"]
    assert "starts after" not in numbers_of(rows[:2])


def test_without_failures_the_interval_is_that_of_the_step():
    found = EndTimes((100.0,), 0.1, 5.0)
    reach = math.exp(0.1 * students_t_quantile((1 + COVERAGE) / 2, 5.0))
    assert found.interval_s == pytest.approx((100 / reach, 100 * reach))
    assert found.late_probability(100.0) == pytest.approx(0.5)
    assert found.late_probability(100 * reach) == pytest.approx((1 - COVERAGE) / 2)
    assert found.late_probability(0.0) == 1.0


def test_a_skew_makes_a_run_late_more_often():
    found = EndTimes((100.0,), 0.1, 5.0, skew=1.5)
    assert found.late_probability(100.0) == pytest.approx(1.5**2 / (1 + 1.5**2))


def test_where_the_step_is_sure_the_share_of_late_campaigns_is_counted():
    found = EndTimes((100.0, 110.0, 120.0, 200.0), 1e-6, 5.0)
    assert found.late_probability(115.0) == pytest.approx(0.5, abs=1e-9)
    assert found.quantile_s(0.9) == pytest.approx(200.0, rel=1e-4)


def test_failures_widen_the_interval_and_a_file_says_where_there_are_none():
    failures = {"gpu": {"mtbf": "3 h"}, "detection": "10 min", "restart": "1 h"}
    with_failures = offers(failures=failures, checkpoint={"storage": "1 GB/s"})
    calm, failing = rent(offers(), members=20), rent(with_failures, members=20)
    assert failing.rows[1].wall_s > calm.rows[1].wall_s
    said = "No failures were given"
    assert any(said in each for each in calm.choices[0].sentences)
    assert not any(said in each for each in failing.choices[0].sentences)


def test_the_answers_are_the_least_of_what_they_are_named_for():
    rows = [
        row("dear", 8, 900.0, 0.0),
        row("small", 4, 500.0, 0.09),
        row("cheap", 16, 300.0, 0.05),
        row("too late", 2, 100.0, 0.5),
    ]
    (choice,) = choose(rows)
    names = {name: answer.offer for name, answer in choice.answers.items()}
    assert names == {FEWEST: "small", CHEAPEST: "cheap", SAFEST: "dear"}
    assert choice.best.offer == "cheap"
    odds = f"{row('dear', 8, 900.0, 0.0).fits_probability:.1%}".replace("%", " %")
    assert f"safest: dear with 8 GPUs ({odds} likely to fit and to be in time)" in answer_lines(
        choice
    )
    assert any("too late with 2 GPUs misses" in sentence for sentence in choice.sentences)


def test_a_rental_that_is_longer_than_the_run_is_said_to_be():
    month = replace(row("month", 10, 7200.0, 0.0), wall_s=14 * DAY)
    (choice,) = choose([month, row("days", 10, 3000.0, 0.0)])
    assert "the shortest rental is 30.0 days for a run of 14.0 days" in " ".join(choice.sentences)


def test_where_no_offer_is_in_time_the_nearest_is_named():
    (choice,) = choose([row("a", 8, 1.0, 0.9), row("b", 8, 1.0, 0.6)])
    assert choice.best is None
    assert "The nearest is b with 8 GPUs" in choice.sentences[0]


def test_finished_rows_are_taken_from_the_journal(tmp_path):
    table = tmp_path / "table.csv"
    first = rent(offers(), table=table)
    computed = []
    again = rent(offers(), table=table, on_row=lambda new, total: computed.append(new))
    assert computed == []
    assert again.rows == first.rows
    with pytest.raises(InputError, match="belongs to another"):
        rent(offers(), table=table, risk=0.2)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("gpus", {"from": 4}, r"offers\.near\.gpus.*\{from: 64, to: 512\}"),
        ("gpus", [], r"offers\.near\.gpus"),
        ("prices", {}, r"offers\.near\.prices.*no such field"),
        ("price", {"gpu": "1 USD/h"}, r"offers\.near\.price\.source"),
        ("price", {"source": "assumed"}, "give gpu or node"),
        ("cluster", {"profile": "h100"}, r"offers\.near\.cluster\.profile"),
        ("cluster", {**H100, "nett": 1}, r"offers\.near\.cluster\.nett"),
        (
            "cluster",
            {"pools": [{**H100, "gpus": 2}]},
            r"offers\.near: .*leave out those of the offer",
        ),
        ("price", {"pools": {"h100-sxm-80gb": "1 USD/h"}, "source": "assumed"}, "and no pools"),
    ],
)
def test_a_wrong_offer_is_refused_at_its_path(path, value, says):
    given = offers()
    given["offers"]["near"][path] = value
    with pytest.raises(InputError, match=says):
        rent(given)


@pytest.mark.parametrize(
    ("offer", "says"),
    [
        ({"gpus": [2, 2]}, "offers.near.gpus.*must not contain a number twice"),
        ({"cluster": {**H100, "gpus": 4}}, "offers.near: .*beside the offer's own gpus"),
    ],
)
def test_numbers_of_gpus_that_contradict_each_other_are_refused(offer, says):
    wrong = offers(offers={"near": {**offers()["offers"]["near"], **offer}})
    with pytest.raises(InputError, match=says):
        evaluate(load_offers(wrong))


A100 = {"profile": "a100-sxm-80gb"}


def mixed_offer(**changes):
    return {
        "cluster": {"pools": [{**H100, "gpus": 8}, {**A100, "gpus": 8}]},
        "price": {
            "pools": {"h100-sxm-80gb": "3 USD/h", "a100-sxm-80gb": "1 USD/h"},
            "source": "assumed",
        },
        **changes,
    }


def of_sixteen_gpus(mixed):
    job = {"model": MODEL, "batch": {"global": 16, "seq_len": 256}}
    alone = {"gpus": 16}
    return offers(
        offers={
            "fast": {**alone, "cluster": H100},
            "slow": {**alone, "cluster": A100},
            "mixed": mixed,
        },
        workloads={"tiny": {"job": job, "tokens": "2B"}},
    )


def test_a_mixed_offer_is_as_fast_as_one_between_its_kinds_and_pays_each_kind_its_price():
    fast, slow, mixed = evaluate(load_offers(of_sixteen_gpus(mixed_offer())))
    assert mixed.gpus == 16
    assert mixed.system == "h100-sxm-80gb + a100-sxm-80gb"
    # So small a model waits for the host, and that of the faster GPU launches more slowly.
    alone_s = fast.step_time_s, slow.step_time_s
    assert min(alone_s) <= mixed.step_time_s <= 1.001 * max(alone_s)
    assert mixed.gpu_usd_per_h == pytest.approx(2.0)
    assert mixed.usd == pytest.approx(2.0 / 3600 * 16 * mixed.wall_s)
    late = [math.log(each.done_interval_s[1] / each.done_s) for each in (fast, slow, mixed)]
    assert late[2] == pytest.approx(max(late[:2]), rel=0.1)


def test_pools_draw_power_each_for_its_own_gpus():
    power = {"gpu_busy": "500 W", "gpu_waiting": "500 W", "host": "1 kW", "network": "0 W"}
    given = of_sixteen_gpus(mixed_offer(power=power))
    given["site"] = {"pue": 1.0, "grid": "100 g/kWh"}
    mixed = evaluate(load_offers(given))[-1]
    hours = mixed.wall_s / 3600
    assert mixed.energy_kwh == pytest.approx((16 * 0.5 + 2 * 1.0) * hours)
    assert mixed.co2_kg == pytest.approx(0.1 * mixed.energy_kwh)


def test_a_mixed_offer_without_the_price_of_a_kind_is_refused():
    wrong = mixed_offer(price={"pools": {"h100-sxm-80gb": "3 USD/h"}, "source": "assumed"})
    with pytest.raises(InputError, match=r"offers\.mixed\.cluster\.pools.*a100-sxm-80gb"):
        evaluate(load_offers(of_sixteen_gpus(wrong)))


def test_an_offer_says_its_gpus():
    wrong = offers(offers={"near": {"cluster": H100}})
    with pytest.raises(InputError, match=r"offers\.near.*must say how many GPUs"):
        load_offers(wrong)


def test_a_campaign_that_is_no_block_is_refused_at_its_path():
    job = {"model": MODEL, "batch": {"global": 2, "seq_len": 256}, "campaign": 3}
    wrong = offers(workloads={"tiny": {"job": job, "tokens": "2B"}})
    with pytest.raises(InputError, match=r"workloads\.tiny\.job\.campaign = 3: must be a block"):
        evaluate(load_offers(wrong))


def test_a_page_and_a_picture_are_written(tmp_path):
    found = rent(offers())
    page = found.write_html(tmp_path / "rent.html").read_text()
    assert "near with 1 GPU " in page or "near with 2 GPUs" in page
    assert found.plot(tmp_path / "rent.png").stat().st_size > 10_000
    assert list(found.to_frame()["offer"]) == ["near", "near", "later"]
    shown = found._repr_html_()
    assert shown.count("<tr>") == 1 + 3
    assert found.choices[0].sentences[0] in html.unescape(shown)
