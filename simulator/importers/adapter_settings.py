"""Which adapters do settings train, beside which frozen weights?

axolotl says ``adapter``, LLaMA-Factory ``finetuning_type``, ms-swift ``tuner_type``, TRL
``use_peft``; torchtune has builders of its own for such models, XTuner a LoraConfig. Names of
matrices are PEFT's.

Source: PEFT's LoraConfig, bitsandbytes' formats, the trainers' own settings; as facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from simulator.importers.adapter_patterns import fitting, is_pattern
from simulator.importers.settings import Settings, leave_out, option_table, spellings_table

_KINDS = ("adapter", "finetuning_type", "tuner_type", "train_type", "sft_type", "use_peft")
_WHOLE = ("full", "", "none", None, False)
_LOW_RANK = ("lora", "qlora")
_NUMBERS = "lora_(r|rank|dropout|target|target_modules|target_linear|target_parameters)"
"""Settings of adapters, which have no meaning where there are none."""
_RANK = 8
"""Of PEFT's LoraConfig."""
_TRL_RANK, _TRL_DROPOUT = 16, 0.05
"""Of TRL's ModelConfig."""
_NEMO_RANK = 32
_ALL = ("all",)
_FOUR_BIT = ("load_in_4bit",)
_EIGHT_BIT = ("load_in_8bit",)
_BITS = ("quantization_bit", "quant_bits")
_TYPES = ("quantization_type", "bnb_4bit_quant_type", "bnb_config_kwargs.bnb_4bit_quant_type")
_DOUBLE = ("double_quantization", "bnb_4bit_use_double_quant",
           "bnb_config_kwargs.bnb_4bit_use_double_quant", "use_bnb_nested_quant")  # fmt: skip
_SAVED = ("lora_modules_to_save", "modules_to_save", "additional_target")


def adapter_fields(settings: Settings) -> dict[str, Any]:
    """Fields of a plan that trains adapters around Hugging Face's Trainer.

    Faults go to ``settings``.
    """
    key, kind = settings.first(*_KINDS)
    if kind in _WHOLE:
        settings.pass_over(_NUMBERS)
        return {}
    by_trl = key == "use_peft"
    if not by_trl and kind not in _LOW_RANK:
        rule = f"is not modelled; known: full, {', '.join(_LOW_RANK)}"
        settings.fault(key, rule, kind, leave_out(key))
        return {}
    spellings = spellings_table("trainer", "spellings")
    base = _base_precision(settings, is_quantised=kind == "qlora") or _stored_format(settings)
    _check_what_else_is_trained(settings)
    return _lora(
        settings,
        rank=settings.whole(*spellings["rank"], default=_TRL_RANK if by_trl else _RANK),
        targets=_targets(settings, *spellings["targets"]),
        dropout=settings.number("lora_dropout", default=_TRL_DROPOUT if by_trl else 0.0),
        base=base,
        is_double=settings.switch(*_DOUBLE, default=not by_trl),
        switches=("use_dora", "peft_use_dora", "use_rslora", "peft_use_rslora"),
    )


def torchtune_adapters(settings: Settings, builder: str) -> dict[str, Any]:
    """Fields of a plan whose model torchtune builds with adapters; faults go to ``settings``."""
    if not builder.startswith(("lora_", "qlora_")):
        return {}
    names = [*(settings.words("model.lora_attn_modules") or ())]
    names += ["w1", "w2", "w3"] if settings.switch("model.apply_lora_to_mlp") else []
    key = "model.apply_lora_to_output"
    if settings.switch(key):
        settings.fault(key, "is not modelled: the head has an adapter", True, leave_out(key))
    is_quantised = builder.startswith("qlora_") or settings.switch("model.quantize_base")
    return _lora(
        settings,
        rank=settings.whole("model.lora_rank", default=_RANK),
        targets=_matrices(settings, "model.lora_attn_modules", names),
        dropout=settings.number("model.lora_dropout", default=0.0),
        base="nf4" if is_quantised else None,
        is_double=True,
        switches=("model.use_dora",),
    )


def automodel_adapters(settings: Settings) -> dict[str, Any]:
    """Fields of a plan with the adapters of NeMo AutoModel; faults go to ``settings``.

    Matrices are said by patterns of their modules, such as ``*_proj`` or ``*.q_proj``.
    """
    if not any(key.startswith("peft.") for key in settings.keys):
        return {}
    names = settings.get("peft.target_modules") or "*_proj"
    listed = [str(name) for name in (names if isinstance(names, list) else [names])]
    is_whole = settings.switch("peft.match_all_linear") or "*_proj" in listed
    short = [name.rpartition(".")[2] for name in listed]
    is_quantised = settings.switch("quantization.load_in_4bit")
    is_eight = settings.switch("quantization.load_in_8bit")
    return _lora(
        settings,
        rank=settings.whole("peft.dim", default=_RANK),
        targets=_ALL if is_whole else _matrices(settings, "peft.target_modules", short),
        dropout=settings.number("peft.dropout", default=0.0),
        base="nf4" if is_quantised else "int8" if is_eight else None,
        is_double=settings.switch("quantization.bnb_4bit_use_double_quant", default=True),
        switches=("peft.use_dora",),
    )


def xtuner_adapters(settings: Settings) -> dict[str, Any]:
    """Fields of a plan with XTuner's LoraConfig; faults go to ``settings``."""
    block = "model.llm.quantization_config"
    four = settings.switch(f"{block}.load_in_4bit")
    kind = settings.get(f"{block}.bnb_4bit_quant_type") or "nf4"
    eight = settings.switch(f"{block}.load_in_8bit") and not four
    is_double = settings.switch(f"{block}.bnb_4bit_use_double_quant")
    base = str(kind) if four else "int8" if eight else None
    return peft_adapters(settings, "model.lora", base=base, is_double=is_double)


def peft_adapters(
    settings: Settings, block: str, *, base: str | None = None, is_double: bool = True
) -> dict[str, Any]:
    """Fields of a plan with PEFT's LoraConfig in a section; faults go to ``settings``.

    Args:
        settings: What a file says.
        block: The section.
        base: Format of the frozen matrices; None is that of the products.
        is_double: Whether the constants of a 4-bit format are quantised themselves.
    """
    if not any(key.startswith(f"{block}.") for key in settings.keys):
        return {}
    return _lora(
        settings,
        rank=settings.whole(f"{block}.r", default=_RANK),
        targets=_targets(settings, f"{block}.target_modules"),
        dropout=settings.number(f"{block}.lora_dropout", default=0.0),
        base=base,
        is_double=is_double,
        switches=(f"{block}.use_dora", f"{block}.use_rslora"),
    )


def nemo_adapters(settings: Settings) -> dict[str, Any]:
    """Fields of a plan with the adapters of NeMo or Megatron-Bridge; faults go to ``settings``."""
    scheme = settings.get("peft.peft_scheme") or settings.get("peft")
    inside = [key for key in settings.keys if key.startswith("peft.")]
    if str(scheme).lower() == "none" and not inside:
        return {}
    if scheme is not None and str(scheme).lower() not in ("lora", "dora"):
        settings.fault("peft", "is not modelled; known: lora, dora", scheme, leave_out("peft"))
        return {}
    found = _lora(
        settings,
        rank=settings.whole("peft.dim", "peft.lora_tuning.adapter_dim", default=_NEMO_RANK),
        targets=_targets(settings, "peft.target_modules"),
        dropout=settings.number("peft.dropout", default=0.0),
        base=None,
        is_double=True,
        switches=(),
    )
    return found | ({"lora": {**found["lora"], "kind": "dora"}} if scheme == "dora" else {})


def _lora(
    settings: Settings, *, rank: int, targets: tuple[str, ...], dropout: float, base: str | None,
    is_double: bool, switches: Iterable[str],
) -> dict[str, Any]:  # fmt: skip
    """The plan's ``lora``, without what its defaults say."""
    kinds = [name for name in switches if settings.switch(name)]
    kind = next((word for word in ("dora", "rslora") if any(word in k for k in kinds)), None)
    found: dict[str, Any] = {"rank": rank}
    found |= {"targets": list(targets)} if targets != _ALL else {}
    found |= {"kind": kind} if kind else {}
    found |= {"dropout": dropout} if dropout else {}
    found |= {"base_precision": base} if base else {}
    found |= {"double_quantisation": False} if base in ("nf4", "fp4") and not is_double else {}
    return {"lora": found}


def _targets(settings: Settings, *keys: str) -> tuple[str, ...]:
    """Our words for the matrices that have an adapter."""
    if settings.switch("lora_target_linear"):
        for key in keys:
            settings.get(key)
        return _ALL
    key, given = settings.first(*keys)
    if given is None:
        return _ALL
    if isinstance(given, list):
        return _matrices(settings, key, [_last_part(str(name)) for name in given])
    if not is_pattern(str(given)):
        return _matrices(settings, key, str(given).split(","))
    known = option_table("trainer", "matrices")
    found = fitting(str(given), known)
    if found and found.in_some_layers:
        rule = "is not modelled: it gives some layers adapters"
        settings.fault(key, rule, given, leave_out(key))
        return _ALL
    return _matrices(settings, key, found.names if found and found.names else (given,))


def _last_part(name: str) -> str:
    """The matrix at the end of a module's name, where no layer is named before it."""
    block, _, matrix = name.rpartition(".")
    return matrix if re.fullmatch(r"[a-z_.]+", block) and _is_known(matrix) else name


def _is_known(matrix: str) -> bool:
    return matrix in option_table("trainer", "matrices")


def _matrices(settings: Settings, key: str, names: Iterable[object]) -> tuple[str, ...]:
    known = option_table("trainer", "matrices")
    found: dict[str, None] = {}
    unknown: list[str] = []
    for name in (str(word).strip() for word in names):
        ours = known.get(name)
        if ours is None:
            unknown.append(name)
            continue
        found |= dict.fromkeys([ours] if isinstance(ours, str) else ours)
    if unknown:
        matrices = "a matrix that is" if len(unknown) == 1 else "matrices that are"
        rule = f"names {matrices} not known; known: {', '.join(known)}"
        settings.fault(key, rule, ", ".join(unknown), leave_out(key))
    return _ALL if "all" in found or not found else tuple(found)


def _base_precision(settings: Settings, *, is_quantised: bool) -> str | None:
    """Format of the frozen matrices, where bitsandbytes quantises them."""
    bits = settings.whole(*_BITS, default=None)
    four = settings.switch(*_FOUR_BIT) or bits == 4
    eight = settings.switch(*_EIGHT_BIT) or bits == 8
    named = settings.choice(*_TYPES, meanings={"nf4": "nf4", "fp4": "fp4"}, default="nf4")
    methods = {"bnb": "", "bitsandbytes": "", "BNB": ""}
    settings.choice("quantization_method", "quant_method", meanings=methods, default="")
    if bits not in (None, 4, 8):
        key, _ = settings.first(*_BITS)
        settings.fault(key, "is not modelled; known: 4, 8", bits, leave_out(key))
    if eight and not four:
        return "int8"
    return named if four or is_quantised else None


def _stored_format(settings: Settings) -> str | None:
    """Format in which the hub keeps a model whose name says so, which loading it keeps.

    Simplified: AWQ, GPTQ and AQLM are taken for nf4, which has as many bits but for constants.
    """
    _, name = settings.first(*spellings_table("trainer", "spellings")["model"])
    said = re.findall(r"[-_](4-?bit|int4|w4a16|awq|gptq|aqlm|8-?bit|int8)\b", str(name).lower())
    if not said:
        return None
    ours = "int8" if any("8" in word for word in said) else "nf4"
    settings.assumed.append(f"{name} keeps its frozen matrices in fewer bits, taken for {ours}")
    return ours


def _check_what_else_is_trained(settings: Settings) -> None:
    for key in _SAVED:
        given = settings.get(key)
        if given:
            rule = "is not modelled: it trains whole matrices besides the adapters"
            settings.fault(key, rule, given, leave_out(key))
