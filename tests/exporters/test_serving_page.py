"""Does the page of a serving run show what its steps and answers say?"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from simulator.exporters.html.serving_page import serving_page
from simulator.serving.answers import Answers
from simulator.serving.described import load_serving
from simulator.serving.engine import Step

SLICES = 24
SPREAD = {"mean": 0.25, "p50": 0.2, "max": 1.5}


def step(start_s: float, end_s: float, running: int, waiting: int = 0, share: float = 0.0) -> Step:
    fields = dict.fromkeys(Step._fields, 0)
    return Step(**{**fields, "start_s": start_s, "end_s": end_s, "running": running,
                   "waiting": waiting, "used_share": share})  # fmt: skip


def page_of(
    *replicas: list[Step],
    hands_over: bool = False,
    objective: dict[str, str] | None = None,
    **answers: object,
):
    fields = dict.fromkeys(Answers.__dataclass_fields__, 0.0) | {
        "good_share": 0.975, "keeps_objective": True,
        "ttft_s": SPREAD, "tpot_s": {}, "end_to_end_s": SPREAD,
    }  # fmt: skip
    scheduler = SimpleNamespace(hands_over=hands_over)
    served = SimpleNamespace(steps=replicas, replicas=[SimpleNamespace(scheduler=scheduler)])
    lines = [("requests/s", "4.0"), ("tokens/s", "100"), ("goodput", "3.9"), ("steps", "7")]
    workload = {} if objective is None else {"objective": objective}
    job = load_serving(
        {
            "deployment": {"model": "llama3.1-8b", "profile": "h100-sxm-80gb", "gpus": 1},
            "workload": workload,
        }
    )
    return serving_page(job, served, Answers(**{**fields, **answers}), lines)


def shown(page, place: int = 2) -> list[tuple[str, ...]]:
    """Requests, waiting ones and the cache's use of every slice, as the page writes them."""
    return [tuple(cell.bars[0].name for cell in row[2:]) for row in page.tables[place].rows]


def test_a_step_that_stands_for_many_is_in_every_slice_that_it_lasts():
    page = page_of([step(0.0, 12.0, 3, share=0.5), step(12.0, 24.0, 7, waiting=2, share=1.0)])
    assert shown(page) == [("3", "0", "50 %")] * 12 + [("7", "2", "100 %")] * 12


def test_a_slice_shows_means_over_the_time_of_the_steps_in_it():
    """The first of 24 s holds half a second of 2 requests, then of 6; nothing runs after 2 s."""
    steps = [step(0.0, 0.5, 2), step(0.5, 1.0, 6), step(1.0, 2.0, 5), step(23.0, 24.0, 1)]
    texts = [requests for requests, _, _ in shown(page_of(steps))]
    assert texts == ["4", "5", *["0"] * 21, "1"]


@pytest.mark.parametrize("pieces", [1, 7, 24, 1000])
def test_however_a_run_is_cut_into_steps_its_slices_are_the_same(pieces):
    cuts = [48.0 * place / pieces for place in range(pieces + 1)]
    steps = [step(begin, end, 5) for begin, end in pairwise(cuts)]
    page = page_of(steps)
    assert shown(page) == [("5", "0", "0 %")] * SLICES
    spans = [tuple(cell.text for cell in row[:2]) for row in page.tables[2].rows]
    assert (spans[0], spans[-1]) == (("0.0", "2.0"), ("46.0", "48.0"))


def test_bars_are_as_long_as_their_share_of_the_largest_and_of_a_whole_cache():
    page = page_of([step(0.0, 12.0, 2, share=0.25), step(12.0, 24.0, 8, waiting=4, share=0.5)])
    lengths = [[cell.bars[0].share for cell in row[2:]] for row in page.tables[2].rows]
    assert lengths[0] == pytest.approx([0.25, 0.0, 0.25])
    assert lengths[-1] == pytest.approx([1.0, 1.0, 0.5])


def test_latencies_say_their_unit_and_those_that_nobody_has_are_left_out():
    latencies = page_of([step(0.0, 1.0, 1)]).tables[1]
    assert [[cell.text for cell in row] for row in latencies.rows] == [
        ["time to the first token", "250 ms", "200 ms", "1.50 s"],
        ["end to end", "250 ms", "200 ms", "1.50 s"],
    ]


@pytest.mark.parametrize(("keeps", "word"), [(True, "meets"), (False, "misses")])
def test_a_sentence_says_whether_the_objective_is_kept(keeps, word):
    page = page_of([step(0.0, 1.0, 1)], keeps_objective=keeps, objective={"ttft": "1 s"})
    assert page.sentences[1:] == [
        f"97.5 % of the requests meet the objective, which asks for 95 %: the run {word} it."
    ]
    assert [name for name, _ in page.headline] == ["requests/s", "tokens/s", "goodput"]


def test_a_page_without_an_objective_says_what_was_served_and_nothing_of_one():
    page = page_of([step(0.0, 1.0, 1)])
    assert page.sentences == [
        "1,000 requests all at once, prompts of 1,024 tokens, answers of 256."
    ]


def test_a_pool_for_prompts_has_a_table_of_its_own():
    steps = [step(0.0, 1.0, 1)]
    titles = [
        [table.heading for table in page.tables[2:]]
        for page in (page_of(steps, steps), page_of(steps, steps, hands_over=True))
    ]
    assert titles == [
        ["A replica over time"], ["A replica over time", "A replica for prompts over time"],
    ]  # fmt: skip


def test_a_replica_that_did_nothing_has_an_empty_table():
    assert page_of([]).tables[2].rows == []
