"""clustersim placement: the table, the JSON and the picture of who sits where."""

from __future__ import annotations

import json

JOB = "workloads/llama3-70b-64xh100.yaml"


def test_the_table_says_which_links_each_group_crosses(clustersim):
    done = clustersim("placement", JOB)
    assert done.code == 0
    rows = {line.split("  ")[0]: line for line in done.out.splitlines()}
    assert "scale-up links" in rows["tp"]
    assert "leaf switches" in rows["pp"]


def test_json_lists_every_rank_of_every_group(clustersim):
    document = json.loads(clustersim("placement", JOB, "--json").out)
    for groups in document["groups"]:
        assert sorted(rank for group in groups["ranks"] for rank in group) == list(range(64))
        assert sum(groups["hop_share"].values()) == 1.0


def test_another_rank_order_moves_the_stages_into_neighbouring_nodes(clustersim):
    order = "plan.rank_order=tp-cp-ep-pp-dp"
    document = json.loads(clustersim("placement", JOB, "--set", order, "--json").out)
    stages = next(groups for groups in document["groups"] if groups["name"] == "pp")
    assert stages["ranks"][0] == [0, 8, 16, 24]


def test_the_picture_is_written_where_it_was_asked_for(clustersim, tmp_path):
    picture = tmp_path / "new" / "map.png"
    done = clustersim("placement", JOB, "--plot", str(picture))
    assert done.code == 0
    assert picture.stat().st_size > 10_000


def test_a_wrong_rank_order_is_named_with_the_words_it_may_have(clustersim):
    done = clustersim("placement", JOB, "--set", "plan.rank_order=tp-dp-pp")
    assert done.code == 2
    assert "plan.rank_order" in done.err
    assert "tp, cp, ep, dp, pp in any order" in done.err
