"""clustersim collective: chunks in the terminal, as JSON and as a picture."""

from __future__ import annotations

import json

import pytest


def test_the_table_shows_how_a_ring_adds_one_contribution_per_step(clustersim):
    done = clustersim("collective", "show", "ring_all_reduce", "--ranks", 4, "--size", "64 MiB")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    last = next(row for row in rows if row and row[0] == "6")
    assert "".join(last).count("*") == 16


def test_json_says_when_every_chunk_moved_and_what_the_closed_form_is(clustersim):
    words = ("collective", "show", "tree_all_reduce", "--ranks", 8, "--json")
    document = json.loads(clustersim(*words).out)
    assert document["seconds"] == pytest.approx(document["closed_form_s"])
    moved = document["transfers"]
    assert len(moved["start_s"]) == len(moved["end_s"]) == 2 * 2 * 7
    assert max(moved["end_s"]) == document["seconds"]


def test_the_picture_is_written_where_it_was_asked_for(clustersim, tmp_path):
    picture = tmp_path / "new" / "ring.svg"
    words = ("collective", "show", "ring_all_reduce", "--ranks", 4, "--plot", picture)
    assert clustersim(*words).code == 0
    assert picture.exists()


def test_all_algorithms_are_listed_with_what_they_do(clustersim):
    out = clustersim("collective", "list").out
    assert "tree_all_reduce" in out
    assert "complementary trees" in out


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--size", "64", "--size"),
        ("--link", "-50 GB/s", "--link"),
        ("--link", "0 GB/s", "--link"),
        ("--hop", "5 GB", "--hop"),
        ("--chunks", "0", "chunks"),
    ],
)
def test_wrong_numbers_are_named(clustersim, option, value, named):
    done = clustersim("collective", "show", "ring_all_reduce", "--ranks", 4, option, value)
    assert done.code == 2
    assert named in done.err


def test_an_unknown_algorithm_is_answered_with_the_known_ones(clustersim):
    done = clustersim("collective", "show", "star", "--ranks", 4)
    assert done.code == 2
    assert "ring_all_reduce" in done.err
