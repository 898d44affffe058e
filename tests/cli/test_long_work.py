"""Is somebody asked before work that takes minutes or gigabytes?"""

from __future__ import annotations

import pytest

from simulator.api.one_step import Result
from simulator.program.effort import Effort


@pytest.fixture
def long_step(monkeypatch):
    monkeypatch.setattr(
        "simulator.program.effort.step_effort", lambda *_, **__: Effort(240.0, 6 * 2**30)
    )


@pytest.mark.usefixtures("long_step")
@pytest.mark.parametrize("command", ["run", "memory"])
def test_long_work_is_refused_until_somebody_says_yes(clustersim, command):
    refused = clustersim(command, "gpt2-1xa100")
    assert refused.code == 2
    assert "takes about 4 min and 6 GiB to simulate; add --yes, or make it smaller" in refused.err
    assert clustersim(command, "gpt2-1xa100", "--yes").code == 0


@pytest.mark.usefixtures("long_step")
def test_other_commands_take_the_yes_of_the_environment(clustersim, monkeypatch):
    assert "set CLUSTERSIM_YES=1" in clustersim("limits", "gpt2-1xa100").err
    monkeypatch.setenv("CLUSTERSIM_YES", "1")
    assert clustersim("limits", "gpt2-1xa100").code == 0


@pytest.mark.usefixtures("long_step")
def test_who_needs_no_simulation_is_not_asked(clustersim):
    assert clustersim("placement", "gpt2-1xa100").code == 0


@pytest.mark.parametrize(("gpus", "says"), [(16, True), (8, False)])
def test_a_search_for_what_fits_on_several_nodes_is_announced(clustersim, monkeypatch, gpus, says):
    monkeypatch.setattr(Result, "_misfit", property(lambda _: "use ZeRO"))
    job = (
        "llama3-8b-8xh100",
        "--set",
        f"cluster.gpus={gpus}",
        "--set",
        "cluster.device.memory=4 GiB",
    )
    for command in ("run", "memory"):
        err = clustersim(command, *job).err
        assert ("Searching for a change that fits: at most 89 changed jobs" in err) is says
        assert "use ZeRO" in err


@pytest.mark.parametrize("command", ["run", "memory"])
def test_what_would_fit_is_not_searched_for_minutes_until_somebody_says_yes(
    clustersim, monkeypatch, command
):
    searched, microbatches = [], []
    one = Effort(50.0, 2**30)
    monkeypatch.setattr(
        "simulator.program.effort.step_effort",
        lambda job, **_: microbatches.append(job.batch.micro_batch) or one,
    )
    monkeypatch.setattr(Result, "_misfit", property(lambda _: searched.append(1) or "use ZeRO"))
    words = (command, "gpt2-1xa100", "--set", "cluster.device.memory=1 GiB")
    unasked, asked = clustersim(*words), clustersim(*words, "--yes")
    assert (unasked.code, asked.code, searched) == (1, 1, [1])
    assert microbatches[:2] == [12, 1]  # of the step, and the smallest that the search tries
    assert "Does not fit: a GPU needs" in unasked.err
    assert "a change that fits takes about 74 min and 1 GiB at most; add --yes" in unasked.err
    assert "use ZeRO" in asked.err
