"""clustersim capacity: the whole training run on the command line."""

from __future__ import annotations

import html
import json
import re

import pytest

from simulator.planning.campaign.factors import Factor, factor_text

PRICE = ("--set", "campaign.systems.h100-sxm-80gb.on_demand=2 USD/h")


def test_every_factor_has_a_line_and_what_is_missing_says_how_to_give_it(clustersim, job_file):
    outcome = clustersim("capacity", job_file, "--tokens", "1B", *PRICE)
    assert outcome.code == 0
    for line in ("steps", "step time", "GPU-hours", "cost, on demand", "CO2 equivalent"):
        assert line in outcome.out
    assert "not given: --set campaign.goodput=…" in outcome.out
    assert "not given: --set 'campaign.site.grid=… g/kWh'" in outcome.out


def test_several_clusters_say_what_is_missing_and_why_one_cannot_run(clustersim, job_file):
    words = ("capacity", job_file, "--tokens", "1B", "--keep-plan", "--gpus", "7,8")
    outcome = clustersim(*words)
    heads, refused, ran = (re.split(r" {2,}", line) for line in outcome.out.splitlines()[1:4])
    assert heads[:3] == ["system", "GPUs", "plan"]
    assert refused[2].startswith("cluster.gpus must be a multiple of")
    assert " to " in ran[heads.index("80 % interval")]
    assert "no price is given: --set campaign.systems.h100-sxm-80gb.on_demand=" in outcome.err
    assert "goodput is taken as 1" in outcome.err
    told = clustersim(*words, *PRICE, "--set", "campaign.goodput=0.9").err
    assert "no price" not in told
    assert "goodput" not in told


def test_a_column_of_times_has_one_unit(clustersim, job_file):
    words = ("capacity", job_file, "--tokens", "20B", "--keep-plan", "--gpus", "4,64")
    heads, *rows = (re.split(r" {2,}", line) for line in clustersim(*words).out.splitlines()[1:4])
    for head in ("step time", "duration", "80 % interval"):
        assert len({row[heads.index(head)].split()[-1] for row in rows}) == 1


def test_a_few_of_a_unit_have_three_digits():
    for amount, unit, text in (
        (0.119, "t", "0.119 t"),
        (6.3, "kWh", "6.30 kWh"),
        (164786.2, "kWh", "164,786 kWh"),
        (0.04, "d", "0.0400 d"),
        (171.06, "d", "171.06 d"),
        (0.0, "USD", "0 USD"),
    ):
        assert factor_text(Factor("any", amount, unit, "")) == text


def test_the_document_has_the_same_factors_as_the_table(clustersim, job_file):
    words = ("capacity", job_file, "--tokens", "1B", "--set", "campaign.goodput=0.5", "--json")
    document = json.loads(clustersim(*words).out)
    amounts = {factor["name"]: factor["amount"] for factor in document["factors"]}
    assert amounts["steps"] == -(-(10**9) // 65536)
    assert amounts["duration"] == 2 * amounts["without failures"]
    assert amounts["cost, on demand"] is None


def test_a_cluster_that_is_riskier_than_accepted_ends_with_1(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=12 GiB")
    words = ("capacity", job_file, *memory, "--tokens", "1B", "--risk")
    likely = json.loads(clustersim("run", job_file, *memory, "--json").out)["fits_probability"]
    assert 0.002 < 1 - likely < 0.4
    assert clustersim(*words, 1.1 * (1 - likely)).code == 0
    riskier = clustersim(*words, 0.001)
    assert riskier.code == 1
    assert "but --risk asks for" in riskier.err


def test_a_page_repeats_every_option_that_its_job_does_not_hold(clustersim, job_file, tmp_path):
    page = tmp_path / "capacity.html"
    words = (
        "--tokens", "1B", "--deadline", "30 d", "--gpus", "8,16", "--risk", "0.02", "--keep-plan",
        "--members", "5", "--workers", "1", "--set", "campaign.goodput=0.5", "--html", page,
    )  # fmt: skip
    assert clustersim("capacity", job_file, *words).code == 0
    command = re.search(r'<pre id="command">(.*?)</pre>', page.read_text())[1]
    again = html.unescape(command).replace("job.yaml", "JOB")
    assert again == (
        "clustersim capacity JOB --deadline '30 d' --gpus 8,16 --members 5 --risk 0.02 --keep-plan "
        "--html capacity.html"
    )
    assert "goodput: 0.5" in page.read_text()
    assert "tokens: 1B" in page.read_text()


def test_a_campaign_file_is_laid_over_a_shipped_job(clustersim, write):
    campaign = write("goodput: 0.5", "campaign.yaml")
    words = ("capacity", "llama3-8b-8xh100", "--campaign", campaign, "--tokens", "1B")
    assert "50.0 %" in clustersim(*words).out


def test_a_campaign_file_is_laid_over_the_jobs_own(clustersim, job_file, write):
    campaign = write(
        """
        tokens: 1B
        failures: {node: {mtbf: 100 h}, detection: 1 min, restart: 5 min}
        checkpoint: {storage: 10 GB/s}
        """,
        "campaign.yaml",
    )
    words = ("capacity", job_file, "--campaign", campaign, "--members", "5", "--json")
    first, again = clustersim(*words).out, clustersim(*words).out
    assert first == again
    document = json.loads(first)
    assert document["goodput"]["members"] == 5
    assert document["goodput"]["tried"]


def test_a_picture_of_the_goodput_is_drawn(clustersim, job_file, tmp_path):
    words = (
        "--set", "campaign.failures={node: {mtbf: 100 h}, detection: 1 min, restart: 5 min}",
        "--set", "campaign.checkpoint={storage: 10 GB/s}", "--members", "5",
    )  # fmt: skip
    picture = tmp_path / "goodput.png"
    assert clustersim("capacity", job_file, "--tokens", "1B", *words, "--plot", picture).code == 0
    assert picture.stat().st_size > 10_000


def test_a_deadline_that_no_cluster_meets_ends_with_1(clustersim, job_file):
    words = ("capacity", job_file, "--tokens", "1B", "--gpus", "8,16", "--keep-plan")
    met = clustersim(*words, "--deadline", "30d")
    assert met.code == 0
    assert "fewest GPUs that finish in 30.0 d: 8 x" in met.out
    assert "ends later with a probability of 0.0 %" in met.out
    answer = clustersim(*words, "--deadline", "1 s", "--json")
    assert answer.code == 1
    assert json.loads(answer.out)["clusters"][0]["late_probability"] == pytest.approx(1, abs=1e-3)


def test_a_budget_picks_the_fastest_cluster_that_it_pays(clustersim, job_file):
    words = ("capacity", job_file, "--tokens", "1B", "--gpus", "8,16", *PRICE)
    assert "16 x h100" in clustersim(*words, "--budget", "1 MUSD").out.splitlines()[-1]
    assert clustersim(*words, "--keep-plan", "--budget", "0.01 USD").code == 1


def test_a_budget_without_a_price_is_refused_before_any_search(clustersim, job_file, monkeypatch):
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was simulated")

    monkeypatch.setattr("simulator.planning.campaign.capacity.compare_clusters", searched)
    outcome = clustersim("capacity", job_file, "--tokens", "1B", "--budget", "1 MUSD")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--set campaign.systems.h100-sxm-80gb.on_demand" in outcome.err


def test_wrong_amounts_are_refused(clustersim, job_file):
    for option, text in (("--deadline", "soon"), ("--budget", "5"), ("--gpus", "many")):
        outcome = clustersim("capacity", job_file, "--tokens", "1B", option, text)
        assert outcome.code == 2
        assert option in outcome.err
    assert clustersim("capacity", job_file).code == 2


def test_a_system_that_there_is_not_is_a_mistake_and_no_row(clustersim, job_file):
    refused = clustersim("capacity", job_file, "--tokens", "1B", "--systems", "h100-sxm-80g")
    assert (refused.code, refused.out) == (2, "")
    assert "did you mean 'h100-sxm-80gb'" in refused.err


@pytest.mark.parametrize("option", [("--keep-plan",), ("--workers", 1)])
def test_an_option_of_a_comparison_needs_one(clustersim, job_file, option):
    refused = clustersim("capacity", job_file, "--tokens", "1B", *option)
    assert refused.code == 2
    assert f"{option[0]}: is for several clusters" in refused.err
