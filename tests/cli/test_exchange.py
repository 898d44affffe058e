"""Do import and export speak with files, stdout, stderr and exit codes as they should?"""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan"])
def test_the_command_writes_the_file_to_stdout_and_talks_on_stderr(clustersim, write, framework):
    stack = {"megatron": "megatron-core"}.get(framework, framework)
    extra = {"deepspeed": "zero: 3", "torchtitan": "zero: 3", "megatron": "tp: 2"}[framework]
    job = write(
        f"""
        model: llama3.1-8b
        cluster: {{profile: h100-sxm-80gb, gpus: 8}}
        batch: {{global: 32, seq_len: 4096}}
        plan: {{stack: {stack}, {extra}}}
        """
    )
    outcome = clustersim("export", framework, job)
    assert outcome.code == 0
    assert outcome.out.startswith({"megatron": "torchrun", "deepspeed": "{"}.get(framework, "["))
    assert outcome.err
