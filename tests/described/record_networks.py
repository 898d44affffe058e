"""Write down what an installed Hugging Face transformers says of its causal language models.

    python -m tests.described.record_networks

writes the defaults of its configuration classes into ``simulator/facts/networks/defaults.yaml``,
and the parameters of the networks that it builds on torch's meta device into
``parameter_counts.csv``: those of every class's default configuration, and of configurations that
differ in one more key.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from simulator.described.huggingface.parameter_counts import definition, formula_names, table_names
from simulator.facts import FOLDER

DEFAULTS = FOLDER / "networks" / "defaults.yaml"
COUNTS = Path(__file__).parent / "parameter_counts.csv"
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "decoder_layers", "num_decoder_layers")
FEW_LAYERS = 8
OBLIGATORY: Mapping[str, Mapping[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 1e4}, "ffn_config": {"moe_top_k": 2}},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64, "num_experts": 4, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_hidden_layers": 4},
    "ministral": {"head_dim": 64},
    "nemotron": {"num_key_value_heads": 8},
}
"""What must be said besides the defaults, for this release to build the network."""
ONLY_WHOLE = ("gemma3n_text",)
"""Networks whose other keys are of so many layers as the default has."""
_WITHOUT_WEIGHTS = re.compile(
    r"initializer.*|rope.*|.*_eps|.*epsilon|.*token_id|.*_index|use_cache|.*dropout.*|.*pdrop|.*coef.*"
    r"|output_.*|.*softcapping|.*multiplier|.*scal(e|ing).*|.*std|.*_range|hidden_act|.*_limit"
    r"|time_step_(m.*|floor)|mask_.*|(mamba_)?chunk_size.*|.*_id|.*kernels|.*rotary.*|.*_theta|num_labels"
    r"|sliding_window.*|global_attn_every_n_layers|use_falcon_mambapy|mamba_dt_(min|max|init_floor)"
    r"|mtp_.*|qk_rope_head_dim"
)


def main(chosen: Sequence[str]) -> None:
    """Write both files; with names, count those networks alone again."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    names = [name for name in table_names() if name in CLASSES]
    _write_defaults({name: _type(name, CLASSES[name]) for name in names}, transformers)
    rows = [row for row in _kept_rows() if row[0] in names and row[0] not in chosen and chosen]
    for name in chosen or names:
        rows += _counted(name)
    with COUNTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model_type", "keys", "parameters"])
        writer.writerows(sorted(rows, key=lambda row: row[0]))


def _kept_rows() -> list[list[Any]]:
    with COUNTS.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def _type(name: str, network: str) -> dict[str, Any]:
    """The class of a network, the keys that its formulas read, and other names of those."""
    config = _config_class(name)
    other_names = dict(config.attribute_map)
    keys, also = {}, {}
    for key in sorted(formula_names(name)):
        real = other_names.get(key, key)
        if real in _fields(config) or key in _fields(config):
            default = _default(config, real if real in _fields(config) else key)
            keys |= {} if default is None else {key: default}
            also |= {} if real == key else {real: key}
            also |= {other: key for other, known in other_names.items() if known == key != other}
    keys |= _blocks(name)
    read = {*keys, *also, *formula_names(name)}
    older = sorted(key for key in _keys_of_old_files(config) if key not in read)
    found = {"class": network, "keys": keys, "also": also, "older": older}
    return {field: value for field, value in found.items() if value}


def _blocks(name: str) -> dict[str, Any]:
    """Defaults of blocks of keys that formulas read of."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = CONFIG_MAPPING[name]()
    read = [key for key in formula_names(name) if key in _fields(type(whole))]
    return {key: _plain(getattr(whole, key)) for key in read if key.endswith("_config")}


def _plain(config: Any) -> dict[str, Any]:
    kept = {field: getattr(config, field, None) for field in sorted(_fields(type(config)))}
    return {key: value for key, value in kept.items() if type(value) in (bool, int)}


def _config_class(name: str) -> Any:
    """The configuration class whose keys a table reads."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[name]
    inside = definition(name, "inside")
    return type(getattr(config(), inside)) if inside else config


def _fields(config: Any) -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(config)}


def _default(config: Any, key: str) -> Any:
    field = _fields(config)[key]
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _keys_of_old_files(config: Any) -> set[str]:
    """Keys that the class understands in files of older releases, and turns into others."""
    source = inspect.getsource(config)
    found = re.findall(
        r"kwargs(?:\.pop|\.get|\.setdefault)?[\[(]\s*\"(\w+)\"|\"(\w+)\" (?:not )?in kwargs", source
    )
    return {key for pair in found for key in pair if key and not _WITHOUT_WEIGHTS.fullmatch(key)}


def _write_defaults(types: Mapping[str, Any], transformers: Any) -> None:
    from transformers.configuration_utils import _LEGACY_LAYER_TYPE_REMAP, ALLOWED_LAYER_TYPES

    lines = [
        "# What has a configuration that its file leaves out? `keys` are defaults, `also` other",
        "# names of keys, `older` keys of older releases that no table reads. Made by",
        "# tests.described.record_networks.",
        "source: documentation",
        f"reference: configuration classes of Hugging Face transformers {transformers.__version__}",
        f"layer_types: {_in_one_line(sorted({*ALLOWED_LAYER_TYPES, *_LEGACY_LAYER_TYPE_REMAP}))}",
        "types:",
    ]
    for name, entry in types.items():
        lines += [
            f"  {name}:",
            *(f"    {key}: {_in_one_line(each)}" for key, each in entry.items()),
        ]
    DEFAULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _in_one_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.strip().removesuffix("...").strip()


def _counted(name: str) -> Iterator[tuple[str, str, int]]:
    """The default network, and those that one more key makes smaller or larger."""
    given = OBLIGATORY.get(name, {})
    few = _count(name, given)
    yield name, json.dumps(given), few
    if definition(name, "inside"):
        return
    if _few_layers(name) != given and name not in ONLY_WHOLE:
        given = _few_layers(name)
        few = _count(name, given)
        yield name, json.dumps(given), few
    for key in _fields(_config_class(name)):
        for value in _other_values(name, key):
            keys = {**given, key: value}
            try:
                count = _count(name, keys)
            except Exception:  # This release builds no such network.
                continue
            if count != few:
                yield name, json.dumps(keys), count


def _few_layers(name: str) -> dict[str, Any]:
    """Keys of the default network with so few layers that it is quickly built."""
    config, given = _config_class(name), dict(OBLIGATORY.get(name, {}))
    for key in LAYER_KEYS:
        if (
            key in _fields(config)
            and key not in given
            and (_default(config, key) or 0) > FEW_LAYERS
        ):
            given[key] = FEW_LAYERS
    return given


def _other_values(name: str, key: str) -> list[Any]:
    from transformers import PreTrainedConfig

    of_all = {*_fields(PreTrainedConfig)} - {"tie_word_embeddings"}
    if key in of_all or _WITHOUT_WEIGHTS.fullmatch(key):
        return []
    config = _config_class(name)
    value, kind = _default(config, key), str(_fields(config)[key].type)
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + 3] if value < 2 else [value + 1 if value <= 8 else 2 * value]
    if key in ("layer_types", "mlp_layer_types", "layers_block_type"):
        whole = getattr(config(**_few_layers(name)), key)
        return [list(reversed(whole))] if whole else []
    if value is None and "list" not in kind:
        return [8 if "num" in key or "head" in key else 96] * ("int" in kind) + [True] * (
            "bool" in kind
        )
    return []


def _count(name: str, keys: Mapping[str, Any]) -> int:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[name](**keys)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in network.parameters())


if __name__ == "__main__":
    main(sys.argv[1:])
