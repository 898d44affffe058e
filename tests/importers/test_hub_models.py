"""Names of models, as files and the Hugging Face hub write them."""

from __future__ import annotations

import pytest

from simulator.described.load import model_names
from simulator.facts import shipped_facts
from simulator.importers.assembly import Given
from simulator.importers.hub_models import named_model, shipped_model
from simulator.importers.settings import Settings


@pytest.mark.parametrize(
    ("name", "shipped"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("NousResearch/Llama-2-7b-hf", "llama2-7b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("/models/Meta-Llama-3.1-8B-Instruct/", "llama3.1-8b"),
        ("unsloth/llama-3-8b-Instruct-bnb-4bit", "llama3-8b"),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-v3"),
        ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w4a16", "qwen2.5-7b"),
        ("codellama/CodeLlama-7b-hf", {"base": "llama2-7b", "vocab": 32016}),
        ("mistralai/Mistral-7B-Instruct-v0.3", {"base": "mistral-7b", "vocab": 32768}),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("somebody/other-7b", None),
        ("x" * 5000, None),
    ],
)
def test_a_name_of_the_hub_is_the_shipped_model_of_its_dimensions(name, shipped):
    assert shipped_model(name) == shipped


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama2-7b", []),
        ("llama-2-7b", ["llama-2-7b has the dimensions of llama2-7b"]),
        (
            "codellama/CodeLlama-7b-hf",
            ["codellama/CodeLlama-7b-hf has the dimensions of llama2-7b"],
        ),
    ],
)
def test_the_shipped_model_of_a_name_is_said_only_where_the_names_differ(name, said):
    settings = Settings({"model_name": name}, "model.yml")
    named_model(settings, Given(), "model_name")
    assert settings.assumed == said


def test_every_name_leads_to_a_shipped_model():
    found = [entry if isinstance(entry, str) else entry["base"]
             for entry in shipped_facts("hub_names")["same"].values()]  # fmt: skip
    assert set(found) <= set(model_names())
