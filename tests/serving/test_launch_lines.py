"""Do launch lines become the deployments that they start, and the reverse?"""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from simulator.cli.app import main
from simulator.errors import InputError
from simulator.serving.described import load_serving
from simulator.serving.launch.launch_commands import launch_line
from simulator.serving.launch.launch_lines import read_launch

VLLM = """
export MODEL=meta-llama/Llama-3.1-70B-Instruct
vllm serve $MODEL --tensor-parallel-size 4 \\
    --max-num-seqs 256 --max-num-batched-tokens=4096 --gpu-memory-utilization 0.9 \\
    --kv-cache-dtype fp8 --quantization fp8 --no-enable-prefix-caching --port 8000
"""
SGLANG = """
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp-size 8 \\
    --enable-dp-attention --ep-size 8 --chunked-prefill-size 8192 --disable-radix-cache \\
    --mem-fraction-static 0.85
"""
ATTENTION_DP = """
tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: true
attention_dp_config: {enable_balance: true, timeout_iters: 60, batching_wait_iters: 0}
model: deepseek-ai/DeepSeek-R1
"""
TRTLLM = """
kv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: fp8, enable_block_reuse: false}
scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}
enable_chunked_prefill: true
tensor_parallel_size: 2
model: meta-llama/Llama-3.1-8B
"""


def read(engine, text, tmp_path, name="launch.sh", **said):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_launch(engine, path, profile="h100-sxm-80gb", **said).document["deployment"]


def test_options_of_vllm_are_fields_of_the_deployment(tmp_path):
    assert read("vllm", VLLM, tmp_path) == {
        "model": "llama3.1-70b",
        "profile": "h100-sxm-80gb",
        "gpus": 4,
        "engine": "vllm",
        "tp": 4,
        "max_requests": 256,
        "max_tokens": 4096,
        "memory_share": 0.9,
        "weights": "fp8",
        "cache": "fp8",
        "prefix_caching": False,
    }


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("Qwen/Qwen3-30B-A3B-FP8", "", "fp8_block"),
        ("Qwen/Qwen3-30B-A3B-FP8", "--quantization fp8", "fp8_block"),
        ("/models/Qwen3-32B-FP8", "--dtype auto", "fp8_block"),
        ("Qwen/Qwen3-32B-AWQ", "", "int4"),
        ("Qwen/Qwen3-30B-A3B", "", None),
        ("Qwen/Qwen3-30B-A3B", "--quantization fp8", "fp8"),
        ("deepseek-ai/DeepSeek-R1", "", "fp8_block"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "", None),
        ("openai/gpt-oss-120b", "--dtype bfloat16", "mxfp4"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", "", "fp8"),
    ],
)
def test_weights_are_in_the_format_of_the_checkpoint(tmp_path, name, options, weights):
    assert read("vllm", f"vllm serve {name} {options}", tmp_path).get("weights") == weights


def test_blocks_of_8_bits_are_written_as_the_engine_knows_them(tmp_path):
    first = read("vllm", "vllm serve Qwen/Qwen3-32B-FP8", tmp_path)
    line = launch_line(load_serving({"deployment": first}).deployment, "Qwen/Qwen3-32B-FP8")
    assert line.endswith("--quantization fp8")
    assert read("vllm", line, tmp_path) == first | {"tp": 1}


def test_attention_groups_of_sglang_lie_within_its_tensor_parallel_ranks(tmp_path):
    found = read("sglang", SGLANG, tmp_path)
    assert (found["tp"], found["attention_dp"], found["ep"], found["gpus"]) == (1, 8, 8, 8)
    assert found["prefix_caching"] is False


def test_settings_of_tensorrt_llm_are_read_from_its_file(tmp_path):
    found = read("tensorrt-llm", TRTLLM, tmp_path, "settings.yaml")
    assert (found["scheduler"], found["memory_share"]) == ("trtllm-max-utilisation", 0.8)
    assert (found["tp"], found["cache"], found["prefix_caching"]) == (2, "fp8", False)


@pytest.mark.parametrize(
    ("engine", "text", "name"),
    [
        ("vllm", VLLM, "launch.sh"),
        ("vllm", VLLM.replace("--tensor-parallel-size 4", "-tp 2 -dp 2"), "launch.sh"),
        ("vllm", f"{VLLM.rstrip()} --preemption-mode swap --swap-space 8", "launch.sh"),
        ("sglang", SGLANG, "launch.sh"),
        ("tensorrt-llm", TRTLLM, "settings.yaml"),
        ("tensorrt-llm", ATTENTION_DP, "settings.yaml"),
    ],
)
def test_what_is_written_is_read_back_as_it_was(engine, text, name, tmp_path):
    first = read(engine, text, tmp_path, name)
    deployment = load_serving({"deployment": first}).deployment
    line, _, comments = launch_line(deployment, first["model"]).partition("\n")
    again = read(engine, line, tmp_path, ignore=["extra_llm_api_options"])
    if comments:
        settings = "\n".join(row[4:] for row in comments.splitlines()[1:])
        extra = f"{settings}\nmodel: {first['model']}\n"
        both = f"{extra}tensor_parallel_size: {again['tp']}\n"
        again |= read(engine, both, tmp_path, "extra.yaml")
    assert load_serving({"deployment": again}).deployment == deployment


def test_groups_of_tensorrt_llm_are_its_tensor_parallel_ranks_and_may_wait_for_each_other(tmp_path):
    found = read("tensorrt-llm", ATTENTION_DP, tmp_path, "settings.yaml")
    assert (found["tp"], found["attention_dp"], found["ep"], found["gpus"]) == (1, 8, 8, 8)
    assert found["prompt_wait_steps"] == 60
    alone = ATTENTION_DP.replace("enable_balance: true", "enable_balance: false")
    assert "prompt_wait_steps" not in read("tensorrt-llm", alone, tmp_path, "settings.yaml")
    usual = ATTENTION_DP.replace("timeout_iters: 60, ", "")
    found = read("tensorrt-llm", usual, tmp_path, "settings.yaml")
    assert found["prompt_wait_steps"] == 50  # as AttentionDpConfig has it
    further = ATTENTION_DP.replace("batching_wait_iters: 0", "batching_wait_iters: 5")
    with pytest.raises(InputError, match="batching_wait_iters = 5: is not modelled"):
        read("tensorrt-llm", further, tmp_path, "settings.yaml")


@pytest.mark.parametrize(
    ("engine", "fields", "path"),
    [
        ("vllm", {"routing": "least-loaded", "gpus": 2}, "deployment.routing"),
        ("vllm", {"scheduler": "sglang"}, "deployment.scheduler"),
        ("vllm", {"graph_batches": [[1, 8, 1]]}, "deployment.graph_batches"),
        ("sglang", {"long_prefill_tokens": 64}, "deployment.long_prefill_tokens"),
        ("tensorrt-llm", {"graphs": False}, "deployment.graphs"),
        ("tensorrt-llm", {"attention_dp": 2, "tp": 2, "gpus": 4}, "deployment.attention_dp"),
    ],
)
def test_what_no_option_says_is_refused_and_not_left_out(engine, fields, path):
    about = {"model": "llama3.1-8b", "profile": "h100-sxm-80gb", "gpus": 1, "engine": engine}
    deployment = load_serving({"deployment": about | fields}).deployment
    with pytest.raises(InputError) as caught:
        launch_line(deployment, "llama3.1-8b")
    assert [fault.path for fault in caught.value.faults] == [path]


def test_swap_space_is_used_only_where_preempted_requests_swap(tmp_path):
    plain, swap = read("vllm", VLLM, tmp_path), f"{VLLM.rstrip()} --swap-space 8"
    assert read("vllm", swap, tmp_path) == plain
    wanted = plain | {"swap": "8 GiB", "scheduler": "vllm-v0"}
    assert read("vllm", f"{swap} --preemption-mode swap", tmp_path) == wanted


def test_an_option_that_costs_something_and_is_not_modelled_is_refused_by_name(tmp_path):
    text = VLLM.replace("--port 8000", "--cpu-offload-gb 10")
    with pytest.raises(InputError, match="cpu_offload_gb"):
        read("vllm", text, tmp_path)
    assert read("vllm", text, tmp_path, ignore=["cpu-offload-gb"])["tp"] == 4


@pytest.mark.parametrize("said", ["--tensor-parallel-size four", "-dp 0", "-pp", "-dp 2 3"])
def test_degrees_that_are_no_whole_numbers_are_refused(said, tmp_path):
    with pytest.raises(InputError, match="whole number"):
        read("vllm", VLLM.replace("--tensor-parallel-size 4", said), tmp_path)


def test_a_script_that_starts_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="starts no sglang"):
        read("sglang", VLLM, tmp_path)


def test_the_commands_import_and_export_a_deployment(tmp_path, capsys):
    script = tmp_path / "launch.sh"
    script.write_text(VLLM, encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["import", "vllm", str(script), "--profile", "h200-sxm-141gb"])
    document = yaml.safe_load(capsys.readouterr().out)
    assert (end.value.code or 0, document["deployment"]["profile"]) == (0, "h200-sxm-141gb")
    file = tmp_path / "serving.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["export", "sglang", str(file)])
    words = shlex.split(capsys.readouterr().out)
    assert end.value.code in (0, None)
    assert words[words.index("--tp-size") + 1] == "4"


def test_settings_in_a_file_that_the_line_names_hold_where_the_line_is_silent(tmp_path):
    """vllm-project/recipes has such files beside its lines; TensorRT-LLM's go over the line."""
    (tmp_path / "more.yaml").write_text("kv-cache-dtype: fp8\nmax-num-batched-tokens: 2048\n")
    line = "vllm serve meta-llama/Llama-3.1-8B --config more.yaml --max-num-batched-tokens 4096"
    found = read("vllm", line, tmp_path)
    assert (found["cache"], found["max_tokens"]) == ("fp8", 4096)
    (tmp_path / "more.yaml").write_text("max_batch_size: 64\n")
    line = (
        "trtllm-serve meta-llama/Llama-3.1-8B --extra_llm_api_options more.yaml --max_batch_size 8"
    )
    assert read("tensorrt-llm", line, tmp_path)["max_requests"] == 64


def test_settings_in_a_file_that_is_not_there_are_asked_for(tmp_path):
    line = "vllm serve meta-llama/Llama-3.1-8B --config absent.yaml"
    with pytest.raises(InputError, match=r"config.*does not exist.*--ignore config"):
        read("vllm", line, tmp_path)
    assert read("vllm", line, tmp_path, ignore=["config"])["gpus"] == 1


def test_which_kernels_and_graphs_are_picked_is_said_and_not_refused(tmp_path, capsys):
    script = tmp_path / "launch.sh"
    picked = (
        "--attention-backend fa3 --cuda-graph-max-bs 128 --moe-a2a-backend deepep "
        '--compilation-config \'{"cudagraph_mode": "FULL"}\''
    )
    script.write_text(f"{SGLANG.rstrip()} {picked}\n")
    with pytest.raises(SystemExit) as end:
        main(["import", "sglang", str(script)])
    said = capsys.readouterr()
    assert end.value.code in (0, None)
    assert yaml.safe_load(said.out)["deployment"] == read("sglang", SGLANG, tmp_path)
    assert "attention_backend, cuda_graph_max_bs, moe_a2a_backend, compilation_config" in said.err


def test_an_image_that_starts_the_engine_is_followed_by_its_options(tmp_path):
    """Source: vLLM's documentation, *Using Docker*."""
    line = (
        "docker run --runtime nvidia --gpus all -p 8000:8000 vllm/vllm-openai:v0.9.0 "
        "--model meta-llama/Llama-3.1-8B --tensor-parallel-size 2"
    )
    found = read("vllm", line, tmp_path)
    assert (found["model"], found["tp"], found["gpus"]) == ("llama3.1-8b", 2, 2)


def test_a_model_may_stand_behind_options(tmp_path):
    line = "vllm serve --host 0.0.0.0 meta-llama/Llama-3.1-8B --max-num-seqs 64"
    found = read("vllm", line, tmp_path)
    assert (found["model"], found["max_requests"]) == ("llama3.1-8b", 64)


def test_settings_that_the_script_writes_itself_are_read(tmp_path):
    script = (
        "cat > more.yaml <<EOF\nmax_batch_size: 32\nEOF\n"
        "trtllm-serve meta-llama/Llama-3.1-8B --extra_llm_api_options more.yaml\n"
    )
    assert read("tensorrt-llm", script, tmp_path)["max_requests"] == 32


def test_how_nodes_find_each_other_costs_nothing(tmp_path):
    line = (
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 "
        "--dist-init-addr 10.0.0.1:5000 --nnodes 2 --node-rank 0 --enable-p2p-check"
    )
    assert read("sglang", line, tmp_path)["gpus"] == 16
