"""What must hold of every job that is accepted, on jobs whose fields are drawn one by one?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import simulator as sim
from simulator.cli.app import main
from simulator.errors import InputError
from simulator.exporters.megatron import megatron_script
from simulator.importers.assembly import Given
from simulator.importers.megatron.launch_line import read_megatron_script
from simulator.results.simulation import run_step
from simulator.results.views.plain_data import json_text
from tests.fuzz.random_jobs import accepted_jobs

MOST_UNFOLDED = 16

V100_IN_THREE_STAGES = {
    "model": {"base": "gpt2", "layers": 6},
    "cluster": {"profile": "dgx1-v100-32gb", "gpus": 3},
    "batch": {"global": 6, "seq_len": 128},
    "plan": {"pp": 3, "schedule": "zb-v", "precision": "bf16", "first_stage_layers": 1},
}


def test_rules_of_the_device_the_schedule_and_the_layers_are_said_together():
    with pytest.raises(InputError) as refused:
        sim.load_job(V100_IN_THREE_STAGES)
    paths = [fault.path for fault in refused.value.faults]
    assert paths == ["plan.precision", "plan.first_stage_layers", "plan.schedule"]


@pytest.mark.parametrize("seed", range(2))
def test_a_job_that_is_accepted_is_simulated(seed):
    for job in accepted_jobs(seed, 15):
        assert sim.simulate(job, engine="replay").step_time_s > 0


def test_without_contention_a_step_is_never_longer_and_holds_the_same():
    for job in accepted_jobs(11, 15):
        full, alone = run_step(job), run_step(job, "replay")
        assert alone.step_time_s <= full.step_time_s * (1 + 1e-12), job.document
        assert alone.peak_allocated_bytes == full.peak_allocated_bytes, job.document


def test_a_step_of_every_rank_is_that_of_the_ranks_that_stand_for_them():
    for job in accepted_jobs(12, 15):
        if job.cluster.gpus <= MOST_UNFOLDED:
            folded, unfolded = run_step(job, "replay"), run_step(job, "replay", unfolded=True)
            assert folded.step_time_s == unfolded.step_time_s, job.document
            assert folded.peak_allocated_bytes == unfolded.peak_allocated_bytes, job.document


def test_a_command_prints_what_a_script_gets(tmp_path, capsys):
    for job in accepted_jobs(13, 3):
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(dict(job.document)))
        with pytest.raises(SystemExit):
            main(["run", str(file), "--json"])
        said = sim.simulate(sim.load_job(file)).to_dict()
        assert json.loads(capsys.readouterr().out) == json.loads(json_text(said))


def test_megatron_does_what_it_is_told_for_a_job_as_the_job_says(tmp_path):
    file = tmp_path / "job.sh"
    written = 0
    for job in accepted_jobs(14, 20, stack="megatron-core"):
        try:
            file.write_text(megatron_script(job))
        except InputError:
            continue  # Megatron has no option for it
        given = Given(profile=job.document["cluster"]["profile"], gpus=job.cluster.gpus)
        back, _ = read_megatron_script(file, given)
        plain = job.model_copy(update={"perturbations": ()})  # of machines, no option's business
        steps = [run_step(each, "replay") for each in (plain, back)]
        assert steps[0].step_time_s == steps[1].step_time_s, job.document
        assert steps[0].peak_allocated_bytes == steps[1].peak_allocated_bytes, job.document
        written += 1
    assert written > 5


def test_the_order_of_sets_changes_no_byte():
    program = (
        "import sys; from tests.fuzz.random_jobs import accepted_jobs; import simulator as sim\n"
        "for job in accepted_jobs(15, 2): print(sim.simulate(job).to_json())"
    )
    outputs = set()
    for seed in ("1", "2"):
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", program], env=environment, cwd=Path(__file__).parents[2],
                capture_output=True, check=True,
            ).stdout
        )  # fmt: skip
    assert len(outputs) == 1
