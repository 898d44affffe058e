"""Can a coding agent ask over the Model Context Protocol?"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp: pip install '.[mcp]'")

ROOT = Path(__file__).parent.parent.parent
JOB = {
    "model": "qwen3-0.6b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 16, "seq_len": 1024},
    "plan": {},
}
OFFERS = {
    "offers": {
        "a": {
            "cluster": {"profile": "h100-sxm-80gb"},
            "gpus": 1,
            "price": {"gpu": "2 USD/h", "source": "assumed"},
        }
    },
    "workloads": {
        "tiny": {
            "job": {"model": "qwen3-0.6b", "batch": {"global": 4, "seq_len": 512}},
            "tokens": "100M",
        }
    },
}


@pytest.fixture(scope="module")
def talk():
    """What a server of its own process answers to some questions, asked by the package's client."""

    async def ask():
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        words = ["-m", "simulator", "mcp"]
        server = StdioServerParameters(
            command=sys.executable, args=words, env={"PYTHONPATH": str(ROOT)}, cwd=ROOT
        )
        calls = {
            "run": ("run", {"job": JOB}),
            "text": ("run", {"job": "\n".join(f"{k}: {json.dumps(JOB[k])}" for k in JOB)}),
            "changed": ("memory", {"job": JOB, "changes": {"plan.tp": 2}}),
            "plan": ("plan", {"job": JOB, "top": 2, "vary": {"plan.tp": [1, 2], "plan.pp": [1]}}),
            "diagnose": (
                "diagnose",
                {"job": {**JOB, "batch": {"global": 8, "seq_len": 1024}}, "step": "0.1 s"},
            ),
            "names": ("names", {"kind": "profiles"}),
            "rent": ("rent", {"offers": OFFERS, "late_risk": 0.2}),
            "misfit": (
                "run",
                {
                    "job": {
                        **JOB,
                        "model": "llama3-70b",
                        "cluster": {"profile": "rtx-4090", "gpus": 1},
                    }
                },
            ),
            "wrong": ("run", {"job": {**JOB, "plan": {"tpp": 2}}}),
            "unknown": ("run", {"job": JOB, "set": {"plan.tp": 2}}),
        }
        async with Client(stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            results = await asyncio.gather(*(client.call_tool(*call) for call in calls.values()))
        return {tool.name: tool for tool in tools}, dict(zip(calls, results, strict=True))

    return asyncio.run(asyncio.wait_for(ask(), 120))


def test_every_tool_says_what_it_takes(talk):
    tools, _ = talk
    assert set(tools) == {"plan", "run", "memory", "rent", "diagnose", "names"}
    assert tools["plan"].input_schema["properties"]["top"]["maximum"] == 50
    assert all(tool.description for tool in tools.values())


def test_a_tool_answers_with_what_the_command_prints(talk, clustersim, tmp_path):
    _, answers = talk
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    printed = json.loads(clustersim("run", file, "--json").out)
    answer = answers["run"].structured_content
    assert {key: answer[key] for key in printed} == printed


def test_a_job_may_be_text(talk):
    _, answers = talk
    assert answers["text"].structured_content == answers["run"].structured_content


def test_changes_reach_the_job(talk):
    _, answers = talk
    whole = answers["run"].structured_content["memory"][0]["peak_allocated_bytes"]
    halved = answers["changed"].structured_content["memory"][0]["peak_allocated_bytes"]
    assert halved < whole


def test_a_search_answers_with_as_many_plans_as_were_asked_for(talk):
    _, answers = talk
    choices = answers["plan"].structured_content["choices"]
    assert [choice["changes"]["plan.pp"] for choice in choices] == [1, 1]


def test_a_diagnosis_names_what_may_be_otherwise(talk):
    _, answers = talk
    assert answers["diagnose"].structured_content["hypotheses"]
    assert "rtx-4090" in answers["names"].structured_content["profiles"]


def test_offers_are_answered_with_what_to_rent(talk):
    _, answers = talk
    found = answers["rent"].structured_content
    assert found["late_risk"] == 0.2
    assert found["choices"][0]["answers"]["cheapest"] == {"offer": "a", "gpus": 1}


def test_a_job_that_does_not_fit_is_an_answer(talk):
    _, answers = talk
    assert not answers["misfit"].is_error
    assert answers["misfit"].structured_content["fits"] is False


def test_a_wrong_job_is_an_error_that_says_what_is_wrong(talk):
    _, answers = talk
    assert answers["wrong"].is_error
    assert "the job: plan.tpp" in answers["wrong"].content[0].text


def test_an_argument_that_no_tool_has_is_refused_and_not_ignored(talk):
    tools, answers = talk
    assert answers["unknown"].is_error
    assert "set" in answers["unknown"].content[0].text
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())


def test_a_folder_of_the_packages_name_where_the_agent_works_is_not_run(tmp_path, monkeypatch):
    from simulator.cli.mcp_tools import memory

    (tmp_path / "simulator").mkdir()
    (tmp_path / "simulator" / "__init__.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    assert asyncio.run(memory(JOB))["fits"]
