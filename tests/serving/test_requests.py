"""How a workload becomes requests: moments of what is drawn, and traces line by line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pydantic import ValidationError

from simulator.errors import InputError
from simulator.serving.requests import Request, requests_of, trace_at_rate
from simulator.serving.workload import AdapterTraffic, Arrivals, Lengths, SharedPrefix, Workload

MANY = 20_000


def drawn(count: int = MANY, **fields: object) -> list[Request]:
    return requests_of(Workload(requests=count, **fields))


def gaps(requests: list[Request]) -> np.ndarray:
    return np.diff([0.0, *(request.arrival_s for request in requests)])


@pytest.mark.parametrize(
    ("kind", "burstiness", "squared_variation"),
    [("poisson", 1.0, 1.0), ("gamma", 1.0, 1.0), ("gamma", 4.0, 4.0), ("gamma", 0.25, 0.25)],
)
def test_gaps_have_the_rate_and_the_squared_variation_that_are_said(
    kind, burstiness, squared_variation
):
    found = gaps(drawn(arrivals=Arrivals(kind=kind, rate=8.0, burstiness=burstiness)))
    assert found.min() >= 0
    assert found.mean() == pytest.approx(1 / 8.0, rel=0.05)
    assert found.var() / found.mean() ** 2 == pytest.approx(squared_variation, rel=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_request_comes_when_it_is_due_at_the_mean_rate(seed):
    arrivals = Arrivals(kind="gamma", rate=8.0, burstiness=4.0)
    assert drawn(100, arrivals=arrivals, seed=seed)[-1].arrival_s == pytest.approx(100 / 8.0)


@pytest.mark.parametrize("kind", ["all-at-once", "closed-loop"])
def test_who_waits_for_nothing_is_there_from_the_beginning(kind):
    users = 4 if kind == "closed-loop" else 0
    found = drawn(100, arrivals=Arrivals(kind=kind, users=users))
    assert {request.arrival_s for request in found} == {0.0}
    assert [request.number for request in found] == list(range(100))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "all-at-once", "rate": 2.0},
        {"kind": "poisson", "rate": 2.0, "users": 4},
        {"kind": "poisson", "rate": 2.0, "burstiness": 4.0},
        {"kind": "closed-loop", "users": 4, "burstiness": 4.0},
    ],
)
def test_a_kind_of_arrivals_refuses_what_it_would_not_heed(fields):
    with pytest.raises(ValidationError, match="does not apply to"):
        Arrivals(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"speed": 2.0}, "that of a trace"),
        ({"shared_prefix": {"distinct": 4}}, "give tokens"),
        ({"shared_prefix": {"cached": True}}, "give tokens"),
        ({"adapters": {"distinct": 4}}, "give a share"),
        ({"prompt": {"mean": 64, "variation": 0.5, "least_share": 0.5}}, "remove one"),
        ({"trace": "t.csv", "shared_prefix": {"tokens": 8}}, "remove shared_prefix"),
        ({"trace": "t.csv", "adapters": {"share": 0.5}}, "remove adapters"),
    ],
)
def test_a_workload_refuses_what_it_would_not_heed(fields, said):
    with pytest.raises(ValidationError, match=said):
        Workload(**fields)


@pytest.mark.parametrize("shape", [{}, {"variation": 0.5}, {"least_share": 0.5}])
def test_no_length_is_beyond_the_longest(shape):
    lengths = Lengths(mean=100, longest=80, **shape)
    assert max(request.prompt_tokens for request in drawn(100, prompt=lengths)) == 80


def test_users_with_a_rate_come_at_times_of_that_rate():
    found = gaps(drawn(arrivals=Arrivals(kind="closed-loop", users=4, rate=8.0)))
    assert found.mean() == pytest.approx(1 / 8.0, rel=0.05)
    assert found.var() / found.mean() ** 2 == pytest.approx(1.0, rel=0.1)


def test_lengths_without_a_spread_are_all_the_mean():
    found = drawn(50, prompt=Lengths(mean=300), answer=Lengths(mean=20))
    assert {(request.prompt_tokens, request.output_tokens) for request in found} == {(300, 20)}


@pytest.mark.parametrize("variation", [0.3, 1.0])
def test_log_normal_lengths_have_the_mean_and_the_variation_that_are_said(variation):
    lengths = np.array(
        [r.prompt_tokens for r in drawn(prompt=Lengths(mean=5000, variation=variation))]
    )
    assert lengths.mean() == pytest.approx(5000, rel=0.03)
    assert lengths.std() / lengths.mean() == pytest.approx(variation, rel=0.06)
    logarithms = np.log(lengths)
    assert np.median(logarithms) == pytest.approx(logarithms.mean(), rel=0.01)


def test_what_is_drawn_beyond_the_longest_is_cut_to_it():
    cut = [r.prompt_tokens for r in drawn(prompt=Lengths(mean=100, variation=2.0, longest=150))]
    free = [r.prompt_tokens for r in drawn(prompt=Lengths(mean=100, variation=2.0))]
    assert max(free) > max(cut) == 150
    assert [min(length, 150) for length in free] == cut
    assert min(free) >= 1


@pytest.mark.parametrize(("share", "least"), [(0.5, 500), (0.0, 1)])
def test_uniform_lengths_reach_from_their_least_share_to_the_longest_both_included(share, least):
    lengths = [r.output_tokens for r in drawn(answer=Lengths(mean=1000, least_share=share))]
    assert (min(lengths), max(lengths)) == (least, 1000)
    assert np.mean(lengths) == pytest.approx((least + 1000) / 2, rel=0.02)


def test_every_prompt_begins_with_one_of_the_shared_prefixes_equally_often():
    found = drawn(prompt=Lengths(mean=300), shared_prefix=SharedPrefix(tokens=100, distinct=4))
    names, ends = zip(*(request.prefix[0] for request in found), strict=True)
    assert set(ends) == {100}
    counts = [names.count(name) for name in set(names)]
    assert len(counts) == 4
    assert counts == pytest.approx([MANY / 4] * 4, rel=0.1)


def test_a_prompt_shorter_than_the_prefix_is_all_prefix():
    (only, *_) = drawn(1, prompt=Lengths(mean=60), shared_prefix=SharedPrefix(tokens=100))
    assert [end for _, end in only.prefix] == [60]


def test_adapters_are_wanted_by_their_share_and_one_as_often_as_another():
    found = drawn(adapters=AdapterTraffic(share=0.25, distinct=5))
    wanted = [request.adapter for request in found if request.adapter >= 0]
    assert len(wanted) == pytest.approx(MANY / 4, rel=0.05)
    assert [wanted.count(number) for number in range(5)] == pytest.approx([MANY / 20] * 5, rel=0.15)
    assert {request.adapter for request in found} == {-1, *range(5)}


def test_prompts_of_different_adapters_have_no_prefix_in_common():
    """What one adapter computed is of no use to another."""
    found = drawn(
        200, prompt=Lengths(mean=50), shared_prefix=SharedPrefix(tokens=20),
        adapters=AdapterTraffic(share=0.5, distinct=2),
    )  # fmt: skip
    by_adapter = {request.adapter: request.prefix[0][0] for request in found}
    assert len(set(by_adapter.values())) == len(by_adapter) == 3


def test_the_same_seed_draws_the_same_requests_and_another_seed_others():
    fields = {"prompt": Lengths(mean=500, variation=1.0), "arrivals": Arrivals(rate=2.0)}
    told = [
        [(r.arrival_s, r.prompt_tokens) for r in drawn(50, seed=seed, **fields)]
        for seed in (7, 7, 8)
    ]
    assert told[0] == told[1] != told[2]


@pytest.fixture
def trace(tmp_path):
    """Writes a trace; the workload that replays it."""

    def write(name: str, text: str, **fields: object) -> Workload:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return Workload(trace=str(tmp_path / name), **fields)

    return write


def test_rows_of_a_table_are_requests_in_order_of_arrival(trace):
    rows = "arrival_s,input_tokens,output_tokens\n3.5,100,10\n1.0,200.0,20\n2.0,0,0\n"
    found = requests_of(trace("t.csv", rows))
    assert [(r.number, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found] == [
        (0, 1.0, 200, 20), (1, 2.0, 1, 1), (2, 3.5, 100, 10),
    ]  # fmt: skip
    assert not any(request.prefix for request in found)


def test_a_trace_is_cut_to_the_first_requests_and_sped_up(trace):
    rows = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{n},10,1\n" for n in range(9))
    found = requests_of(trace("t.csv", rows, requests=4, speed=2.0))
    assert [request.arrival_s for request in found] == [0.0, 0.5, 1.0, 1.5]


def test_without_a_number_of_requests_all_of_a_trace_come(trace):
    rows = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{n},10,1\n" for n in range(1200))
    assert len(requests_of(trace("t.csv", rows))) == 1200


def test_a_trace_whose_requests_come_at_once_has_no_rate_to_change(trace):
    rows = "arrival_s,input_tokens,output_tokens\n5,10,1\n5,10,1\n"
    with pytest.raises(InputError, match="has no rate"):
        trace_at_rate(trace("t.csv", rows), 2.0, 10)


def test_rounds_of_a_trace_find_none_of_each_others_blocks(trace):
    """Otherwise a short trace would seem to have all its prompts in the cache."""
    line = {"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    text = "\n".join(json.dumps({"timestamp": 1000 * n, **line}) for n in range(2))
    prefixes = [request.prefix for request in trace_at_rate(trace("t.jsonl", text), 1.0, 4)]
    assert prefixes[0] == prefixes[1] != prefixes[2] == prefixes[3]


def test_hashes_of_mooncake_name_512_tokens_each_and_only_whole_ones_are_shared(trace):
    lines = [
        {"timestamp": 2000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 500, "input_length": 512, "output_length": 7, "hash_ids": [1]},
        {"timestamp": 900, "input_length": 511, "output_length": 7, "hash_ids": [9]},
    ]
    found = requests_of(trace("t.jsonl", "\n".join(map(json.dumps, lines))))
    assert [request.arrival_s for request in found] == [0.5, 0.9, 2.0]
    assert [request.prefix for request in found] == [((1, 512),), (), ((1, 512), (2, 1024))]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "arrival_s,input_tokens,output_tokens\n1,-5,3\n", "input_tokens"),
        ("t.csv", "arrival_s,input_tokens,output_tokens\n1,5,3\n2,x,3\n", "input_tokens"),
        ("t.csv", "arrival_s,input_tokens,output_tokens\n1,2.5,3\n", "row 1"),
        ("t.csv", "arrival_s,input_tokens\n1,5\n", "output_tokens"),
        ("t.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 1}\n{', "line 2"),
        ("t.jsonl", '{"timestamp": -1, "input_length": 5, "output_length": 1}', "line 1"),
        ("t.jsonl", '{"timestamp": 0, "input_length": 5}', "output_length"),
    ],
)
def test_a_trace_that_cannot_be_meant_is_refused_with_its_place(trace, name, text, said):
    with pytest.raises(InputError) as caught:
        requests_of(trace(name, text))
    assert said in str(caught.value)


def test_times_of_a_request_are_counted_from_its_arrival():
    request = Request(0, 2.0, 100, 5, first_token_s=2.5, last_token_s=4.5)
    assert (request.ttft_s, request.end_to_end_s, request.tpot_s) == (0.5, 2.5, 0.5)
    alone = Request(0, 2.0, 100, 1, first_token_s=2.5, last_token_s=2.5)
    assert alone.tpot_s == 0.0
