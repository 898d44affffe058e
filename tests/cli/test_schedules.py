"""Do the schedule commands show, compare and draw schedules?"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from simulator.schedule import SCHEDULES


def test_a_schedule_is_shown_as_a_picture_with_its_figures(clustersim):
    outcome = clustersim("schedule", "show", "1f1b", "--pp", 2, "--microbatches", 2)
    assert outcome == (
        0,
        """\
1f1b: one forward, one backward; activations of at most p microbatches
2 stages, 2 microbatches; forward 1, backward 2 = input gradient 1 + weight gradient 1

time    0           4           8
rank 0  F0 F1 .  .  B0 -- .  B1 --
rank 1  .  F0 B0 -- F1 B1 -- .  .

F forward, B backward, -- continues, . idle

bubble 33.3 % of a step of 9
training: synchronous
with blocking sends: no deadlock

per rank; activations in units of one microbatch on all layers of the rank
rank  busy  waits between  peak activations  weight versions
   0     6              3                 2                1
   1     6              0                 1                1

""",
        "",
    )


def test_an_order_that_blocking_sends_would_stop_says_what_must_be_buffered(clustersim):
    sizes = ("--pp", 4, "--microbatches", 8)
    out = clustersim("schedule", "show", "varuna", *sizes).out
    assert "with blocking sends: deadlock unless 2 messages are buffered between two ranks" in out
    assert json.loads(clustersim("schedule", "show", "zb-2p", *sizes, "--json").out)[
        "buffers_needed"
    ] == 1  # fmt: skip


def test_a_picture_that_no_terminal_shows_is_left_out(clustersim):
    outcome = clustersim("schedule", "show", "1f1b", "--pp", 1024, "--microbatches", 8)
    assert outcome.code == 0
    assert "The picture of 1024 ranks is left out" in outcome.out


def test_the_order_written_is_the_one_drawn_at_these_costs(clustersim, tmp_path):
    file = tmp_path / "mine.csv"
    sizes = ("--pp", 4, "--microbatches", 8, "--weight", 0.4)
    drawn = clustersim("schedule", "show", "zb-2p", *sizes, "--csv", file).out
    again = clustersim("schedule", "show", file, "--weight", 0.4).out
    assert drawn.splitlines()[3:9] == again.splitlines()[3:9]


def test_an_asynchronous_schedule_says_that_it_is(clustersim):
    out = clustersim("schedule", "show", "pipedream", "--pp", 4, "--microbatches", 8).out
    assert "bubble 0.0 % of a step of 24" in out
    assert "training: asynchronous; the pipeline never drains" in out
    assert [line.split()[-1] for line in out.splitlines()[-5:-1]] == ["4", "3", "2", "1"]


def test_costs_are_options(clustersim):
    words = ("--pp", 4, "--microbatches", 8, "--forward", 2, "--backward", 3, "--weight", 1)
    out = clustersim("schedule", "show", "1f1b", *words).out
    assert "forward 2, backward 3 = input gradient 2 + weight gradient 1" in out
    assert "of a step of 55" in out  # (8 + 4 - 1)(2 + 3)


def test_json_has_every_slot_with_its_times(clustersim):
    words = ("--pp", 4, "--microbatches", 8, "--json")
    shown = json.loads(clustersim("schedule", "show", "zb-v", *words).out)
    assert (shown["vpp"], shown["step_time"], shown["peak_microbatches"]) == (2, 25.5, 4)
    assert shown["costs"] == {
        "forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1,
    }  # fmt: skip
    slots = shown["ranks"][0]["slots"]
    assert len(slots) == 2 * 8 * 3
    assert slots[-1] == {
        "phase": "W", "stage": 0, "chunk": 0, "microbatch": 7,
        "start": 23.5, "end": 24, "overlaps_next": False,
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_schedule_is_drawn_into_a_file(clustersim, tmp_path, suffix):
    path = tmp_path / "deep" / f"picture.{suffix}"
    sizes = ("--pp", 2, "--microbatches", 4)
    outcome = clustersim("schedule", "show", "dualpipe", *sizes, "--plot", path)
    assert (outcome.code, outcome.err) == (0, f"wrote {path}\n")
    assert path.stat().st_size > 1000


def test_the_table_of_a_comparison_has_the_closed_forms(clustersim):
    """Bubble 3 (tF + tB) of 1F1B, half of it in two chunks, 3 (tF + tI - tW) of ZB-H1."""
    words = ("1f1b", "interleaved-1f1b", "zb-h1", "--pp", 4, "--microbatches", 8)
    outcome = clustersim("schedule", "compare", *words)
    rows = [line.split()[:11] for line in outcome.out.splitlines()[2:5]]
    assert [row[:10] for row in rows] == [
        ["1f1b", "1", "33", "27.3", "%", "4", "1.00", "x", "1", "whole"],
        ["interleaved-1f1b", "2", "28.5", "15.8", "%", "5.5", "1.38", "x", "1", "whole"],
        ["zb-h1", "1", "27", "11.1", "%", "4", "1.00", "x", "1", "split"],
    ]


def test_a_comparison_of_all_schedules_as_json(clustersim):
    words = ("--pp", 4, "--microbatches", 8, "--json")
    rows = json.loads(clustersim("schedule", "compare", *SCHEDULES, *words).out)["schedules"]
    found = {row["schedule"]: row for row in rows}
    assert list(found) == list(SCHEDULES)
    assert found["gpipe"]["peak_relative_to_1f1b"] == 2
    assert found["chimera"]["weight_copies"] == 2
    assert not found["pipedream"]["synchronous"]


def test_a_comparison_is_drawn_into_a_file(clustersim, tmp_path):
    path = tmp_path / "compared.svg"
    sizes = ("--pp", 4, "--microbatches", 8)
    outcome = clustersim("schedule", "compare", "gpipe", "zb-v", *sizes, "--plot", path)
    assert (outcome.code, outcome.err) == (0, f"wrote {path}\n")
    assert "gid" not in outcome.out
    assert path.read_text().count('id="idle"') == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("show", "1f1b", "--forward", 0), "--forward = 0.0: must be a positive number"),
        (("show", "1f1b", "--weight", 3), "must be less than the whole backward"),
        (("show", "1f1b", "--plot", "picture.bmp"), ".png, .svg or .pdf"),
        (("compare", "1f1b", "gpipe", "--vpp", 2), "none of these schedules uses it"),
        (("compare", "1f1b", "1f2b"), "no such schedule"),
    ],
)
def test_a_wrong_question_ends_with_2_and_no_answer(clustersim, words, says):
    outcome = clustersim("schedule", *words, "--pp", 4, "--microbatches", 8)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


def test_a_schedule_in_a_file_is_shown_and_compared_at_its_own_sizes(clustersim, tmp_path):
    path = tmp_path / "mine.csv"
    clustersim("schedule", "show", "zb-v", "--pp", 4, "--microbatches", 8, "--csv", path)
    named, read = (
        json.loads(clustersim("schedule", "show", *words, "--json").out)
        for words in (("zb-v", "--pp", 4, "--microbatches", 8), (path,))
    )
    assert (read["vpp"], read["ranks"]) == (2, named["ranks"])
    compared = json.loads(clustersim("schedule", "compare", path, "1f1b", "--json").out)
    assert [each["step_time"] for each in compared["schedules"]] == [25.5, 33]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1f1b", "--pp", 4), "--microbatches: is missing"),
        (
            ("missing.csv",),
            "No such file or directory; give a file with one row per rank",
        ),
        (("mine.csv", "--pp", 3), "mine.csv is an order for 2; use as many ranks as it has rows"),
    ],
)
def test_a_file_or_sizes_that_are_missing_or_wrong_are_refused(
    clustersim, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0,1B0\n")
    outcome = clustersim("schedule", "show", *words)
    assert outcome.code == 2
    assert said in outcome.err


def test_the_schedule_of_a_job_is_drawn_at_its_real_passes(clustersim, job_file):
    """4 microbatches on two stages, of which the last also has the head."""
    words = ("--job", job_file, "--set", "batch.global=16")
    code, out, err = clustersim("schedule", "show", *words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("1f1b: ")
    assert lines[1].endswith("tp2 pp2 dp4; 2 stages, 4 microbatches")
    picture = [line.split()[2:] for line in lines[4:6]]
    passes = [[cell for cell in row if cell[0] in "FB"] for row in picture]
    assert passes == [
        ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"],
        ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"],
    ]
    assert "~" in picture[0]
    assert "F forward, B backward, -- continues, . idle, ~ update or exchange" in lines


def test_passes_in_json_are_those_of_the_simulated_step(clustersim, job_file):
    words = ("--set", "plan.schedule=zb-h1", "--json")
    shown = json.loads(clustersim("schedule", "show", "--job", job_file, *words).out)
    run = json.loads(clustersim("run", job_file, *words).out)
    assert shown["step_time_s"] == run["step_time_s"]
    assert (shown["schedule"], shown["pp"], shown["microbatches"]) == ("zb-h1", 2, 8)
    for rank in shown["ranks"]:
        passes = rank["passes"]
        assert len(passes) == 3 * 8
        assert all(a["end_s"] <= b["start_s"] + 1e-12 for a, b in pairwise(passes))
        busy_s = sum(each["end_s"] - each["start_s"] for each in passes)
        assert rank["busy_s"] == pytest.approx(busy_s)
        assert busy_s < run["step_time_s"]


def test_a_job_is_drawn_under_another_schedule_with_the_chunks_that_this_needs(
    clustersim, job_file, tmp_path
):
    picture, csv = tmp_path / "step.png", tmp_path / "order.csv"
    words = ("zb-v", "--job", job_file, "--set", "batch.global=16")
    code, out, err = clustersim("schedule", "show", *words, "--plot", picture, "--csv", csv)
    assert (code, err) == (0, f"wrote {picture}\nwrote {csv}\n")
    assert "2 stages of 2 chunks, 4 microbatches" in out
    assert picture.stat().st_size > 1000
    assert csv.read_text().splitlines()[0].startswith("0F0,")


def test_an_order_from_a_file_runs_in_a_job(clustersim, job_file, tmp_path):
    csv = tmp_path / "order.csv"
    sizes = ("--pp", 2, "--microbatches", 2)
    assert clustersim("schedule", "show", "gpipe", *sizes, "--csv", csv).code == 0
    words = (csv, "--job", job_file, "--set", "batch.global=8", "--json")
    ranks = json.loads(clustersim("schedule", "show", *words).out)["ranks"]
    for rank in ranks:
        shown = [f"{each['phase']}{each['microbatch']}" for each in rank["passes"]]
        assert shown == ["F0", "F1", "B0", "B1"]


def test_a_job_is_compared_under_several_schedules(clustersim, job_file):
    words = ("1f1b", "zb-h1", "interleaved-1f1b", "--job", job_file)
    out = clustersim("schedule", "compare", *words).out
    rows = [line.split() for line in out.splitlines()[2:5]]
    assert [row[:2] for row in rows] == [["1f1b", "1"], ["zb-h1", "1"], ["interleaved-1f1b", "2"]]
    assert rows[0][4:6] == ["0.0", "%"]
    found = json.loads(clustersim("schedule", "compare", *words, "--json").out)["schedules"]
    setting = "plan={tp: 2, pp: 2, vpp: 2, schedule: interleaved-1f1b}"
    run = json.loads(clustersim("run", job_file, "--set", setting, "--json").out)
    assert found[-1]["step_time_s"] == run["step_time_s"]
    assert found[-1]["bubble_fraction"] == run["bubble_fraction"]


def test_a_job_under_several_schedules_is_drawn_into_a_file(clustersim, job_file, tmp_path):
    path = tmp_path / "schedules.png"
    words = ("1f1b", "interleaved-1f1b", "--job", job_file, "--plot", path)
    assert clustersim("schedule", "compare", *words).code == 0
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("name", ["zb-h2", "zb-v", "zb-2p", "1f1b"])
def test_a_bubble_is_said_to_be_at_the_ends_only_where_no_rank_waits_between(clustersim, name):
    words = (name, "--pp", 4, "--microbatches", 8)
    out = clustersim("schedule", "show", *words).out
    run = json.loads(clustersim("schedule", "show", *words, "--json").out)
    assert "no bubble" not in out
    assert run["bubble_share"] > 0
    rows = [line.split() for line in out.rstrip().splitlines()[-4:]]
    waits = any(float(row[2]) for row in rows)
    assert ("before the first and after the last pass" in out) is not waits


def test_schedules_of_which_none_fits_end_with_1(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=1 GiB")
    outcome = clustersim("schedule", "compare", "1f1b", "zb-h1", "--job", job_file, *memory)
    assert outcome.code == 1
    assert outcome.err.startswith("No schedule fits;")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show",), "NAME|FILE.csv: is missing"),
        (("show", "1f1b", "--pp", 2, "--set", "plan.pp=4"), "changes a job, and none is given"),
        (("show", "--job", "JOB", "--pp", 2), "--pp: cannot be combined with --job"),
        (("show", "--job", "JOB", "--forward", 1), "--forward: cannot be combined with --job"),
        (("show", "naiv", "--job", "JOB"), "naiv"),
        (("show", "zb-h1", "--job", "JOB", "--set", "plan.pp=64"), "plan.pp"),
        (("show", "zb-v", "--job", "JOB", "--set", "plan.pp=1"), "plan.pp = 1: zb-v needs a pip"),
    ],
)
def test_what_does_not_go_with_a_job_is_refused_by_name(clustersim, job_file, words, said):
    outcome = clustersim("schedule", *(job_file if word == "JOB" else word for word in words))
    assert outcome.code == 2
    assert said in outcome.err
