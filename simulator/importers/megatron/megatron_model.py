"""How do settings of Megatron-Core become the fields of a model?

Defaults are those of Megatron-LM's command line: without further options, a GPT with
learned positions, layer norms, biases and tied embeddings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from simulator.importers.assembly import ASK_FOR_MODEL
from simulator.importers.settings import Settings, leave_out, option_table, spellings_table

COUNTS = spellings_table("megatron", "counts")
"""Fields that are one whole number, and the options that set it."""
SWITCHES = spellings_table("megatron", "switches")
"""Fields that are true where an option is given, and false where it is not."""
_VOCABULARIES = option_table("megatron", "tokenizer_vocabulary")
_MOST_LAYERS = 10_000
_AT_LEAST_ONE = (
    "plan.tp", "plan.pp", "plan.cp", "plan.ep", "plan.etp", "model.layers", "model.hidden",
    "model.heads", "batch.micro", "batch.global", "batch.seq_len",
)  # fmt: skip
"""Fields that no other number makes sense for."""


def count_of(settings: Settings, field: str, default: Any) -> Any:
    """The number under the options of a field, or the default."""
    least = 1 if field in _AT_LEAST_ONE else None
    return settings.whole(*COUNTS[field], default=default, least=least)


def switch_of(settings: Settings, field: str) -> bool:
    """Whether an option of a field is given."""
    return settings.switch(*SWITCHES[field])


def named_keys(prefix: str) -> list[str]:
    """Options of all fields whose names begin so."""
    tables = (COUNTS, SWITCHES)
    return [key for table in tables for field in table if field.startswith(prefix)
            for key in table[field]]  # fmt: skip


def model_fields(settings: Settings, tp: int, name: str | None) -> dict[str, Any]:
    """Fields of the model in place; faults go to ``settings``.

    Args:
        settings: What a file says, under the names of Megatron-LM.
        tp: Tensor-parallel degree, which the vocabulary is padded for.
        name: Name of the model; None where the user takes another than the file's.
    """
    hidden = _obligatory(settings, "model.hidden", is_needed=name is not None)
    heads = _obligatory(settings, "model.heads", is_needed=name is not None)
    is_gated, activation = _activation(settings)
    ffn_hidden = count_of(settings, "model.ffn_hidden", None)
    if ffn_hidden is None:
        # Two thirds of 4 h, in whole 64s, hold as many weights in three matrices as 4 h in two.
        ffn_hidden = int(4 * hidden * 2 / 3) // 64 * 64 if is_gated else 4 * hidden
    model: dict[str, Any] = {
        "name": name,
        "layers": count_of(settings, "model.layers", 1),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _kv_heads(settings, heads),
        "head_dim": count_of(settings, "model.head_dim", 0),
        "ffn_hidden": ffn_hidden,
        "vocab": _vocabulary(settings, tp) if name is not None else 1,
        "gated_mlp": is_gated,
        "activation": activation,
        "clamped_gate": settings.number("activation_func_clamp_value", default=0.0) > 0,
        "tied_embeddings": _ties_embeddings(settings),
        **_positions(settings),
        **_norms_and_biases(settings),
        **_window(settings),
        "embedding_norm": settings.switch("embed_layernorm"),
        "multi_token_layers": count_of(settings, "model.multi_token_layers", 0) or 0,
    }
    if settings.switch("multi_latent_attention"):
        model["latent_attention"] = _latent_attention(settings)
        # The size of a head and of its groups follow from the latent sizes.
        model |= {"head_dim": 0, "kv_heads": 0, "qk_norm": "none"}
    if count_of(settings, "model.experts.count", None):
        model["experts"] = _experts(settings, ffn_hidden, model["layers"])
    return {key: value for key, value in model.items() if value != _MODEL_DEFAULTS.get(key)}


_MODEL_DEFAULTS: Mapping[str, object] = {
    "kv_heads": 0, "head_dim": 0, "gated_mlp": True, "activation": "silu", "positions": "rotary",
    "tied_embeddings": False, "max_positions": 0, "normalisation": "rmsnorm", "norm_bias": False,
    "qkv_bias": False, "attention_output_bias": False, "mlp_bias": False, "qk_norm": "none",
    "sliding_window": 0, "sliding_window_every": 1, "multi_token_layers": 0,
    "attention_sinks": False, "clamped_gate": False, "embedding_norm": False,
}  # fmt: skip


def encoder_fields(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    """What Megatron-LM's BERT has otherwise than its GPT, of the same width.

    Two token types; behind the last norm a transform (product, bias, norm) and a bias of the
    vocabulary, and for pairs of sentences a pooler and a head of two classes.

    Source: Megatron-LM, ``megatron/core/models/bert``, as facts.
    """
    hidden = model["hidden"]
    types, transform = 2 * hidden, hidden**2 + 3 * hidden
    has_pairs = not settings.switch("bert_no_binary_head")
    pairs = hidden**2 + hidden + 2 * hidden + 2 if has_pairs else 0
    extra = types + transform + pairs
    return {**model, "causal": False, "head_bias": True, "extra_parameters": extra}


def _obligatory(settings: Settings, field: str, *, is_needed: bool) -> int:
    value = count_of(settings, field, None)
    if value is None and is_needed:
        settings.fault(COUNTS[field][0], "is needed to determine the model", hint=ASK_FOR_MODEL)
    return value or 1


def _kv_heads(settings: Settings, heads: int) -> int:
    groups: int = count_of(settings, "model.kv_heads", heads)
    return 0 if groups == heads else groups


def _activation(settings: Settings) -> tuple[bool, str]:
    settings.get("squared_relu")
    named = settings.get("activation") or settings.get("activation_func")
    named = named or settings.get("activation_func._target_") or ""
    glu = settings.meaning("megatron/glu", "glu_activation", default=None)
    if glu is not None:
        return True, glu
    if settings.switch("quick_geglu") or "geglu" in str(named):
        return True, "gelu"
    if settings.switch("swiglu") or "swiglu" in str(named):
        return True, "silu"
    if settings.switch("squared_relu") or re.search(r"squared.?relu", str(named)):
        return settings.switch("gated_linear_unit"), "squared-relu"
    is_gated = settings.switch("gated_linear_unit")
    if "silu" in str(named) or (is_gated and not named):
        return is_gated, "silu"
    return is_gated, "relu" if str(named).endswith("relu") else "gelu"


def _ties_embeddings(settings: Settings) -> bool:
    if settings.switch("untie_embeddings_and_output_weights"):
        return False
    return settings.switch("share_embeddings_and_output_weights", default=True)


def _vocabulary(settings: Settings, tp: int) -> int | None:
    divisor = settings.whole("make_vocab_size_divisible_by", default=128, least=1)
    vocab: int | None = count_of(settings, "model.vocab", None)
    tokenizer = settings.get("tokenizer_type") or settings.get("patch_tokenizer_type")
    tokenizer = tokenizer or settings.get("type")
    if padded_to := settings.whole("pad_vocab_size_to", default=None):
        return int(padded_to)
    tokenizer = None if tokenizer is None else str(tokenizer)
    library = settings.get("library")
    tokenizer = tokenizer or (None if library in (None, "megatron") else str(library))
    if vocab is None and (tokenizer is None or tokenizer in _VOCABULARIES):
        vocab = _VOCABULARIES[str(tokenizer or "GPT2BPETokenizer")]
        settings.assumed.append(f"the vocabulary has the {vocab} entries of {tokenizer or 'GPT-2'}")
    if vocab is None:
        rule = f"is in the files of {tokenizer}, which are not read"
        settings.fault("vocab_size", rule, hint="give --define vocab_size=N")
        return 1
    if divisor != 128:
        padded = -(-vocab // (divisor * tp)) * divisor * tp
        if padded != vocab:
            settings.assumed.append(f"the vocabulary of {vocab} is padded to {padded}")
        return padded
    return vocab


def _positions(settings: Settings) -> dict[str, Any]:
    kinds = {
        "rope": "rotary", "yarn": "rotary", "learned_absolute": "learned", "none": "none",
        "alibi": "alibi", "rotary": "rotary", "absolute": "learned",
    }  # fmt: skip
    named = settings.choice("position_embedding_type", meanings=kinds, default="learned")
    rows = count_of(settings, "model.max_positions", None) or count_of(
        settings, "batch.seq_len", None
    )
    has_table = not settings.switch("no_position_embedding")
    if settings.switch("use_rotary_position_embeddings"):
        named = "rotary"
    if settings.switch("use_alibi_position_embeddings"):
        named = "alibi"
    if named == "learned" and not has_table:
        named = "none"
    return {"positions": named, "max_positions": rows if named == "learned" else 0}


def _norms_and_biases(settings: Settings) -> dict[str, Any]:
    kinds = dict.fromkeys(("RMSNorm", "rmsnorm"), "rmsnorm")
    kinds |= dict.fromkeys(("LayerNorm", "layernorm", "layernorm1p", "LayerNorm1P"), "layernorm")
    norm = settings.choice("normalization", meanings=kinds, default="layernorm")
    has_biases = settings.switch("add_bias_linear", "bias", default=True)
    has_biases = has_biases and not settings.switch("disable_bias_linear")
    return {
        "normalisation": norm,
        "norm_bias": norm == "layernorm",
        "qkv_bias": settings.switch("add_qkv_bias", "qkv_bias") or has_biases,
        "attention_output_bias": has_biases,
        "mlp_bias": has_biases,
        "qk_norm": "head" if settings.switch("qk_layernorm") else "none",
        "attention_sinks": settings.choice(
            "softmax_type", meanings={"vanilla": False, "learnable": True}, default=False
        ),
    }


def _window(settings: Settings) -> dict[str, Any]:
    """Sliding window; Megatron-Core's does not count the token itself."""
    given = settings.get("window_size")
    if given is None:
        return {}
    left = re.match(r"[\[(]?\s*(\d+)", str(given))
    if left is None:
        settings.fault("window_size", "must be the tokens before and after, such as 127,0", given)
        return {}
    every = settings.whole("window_attn_skip_freq", default=1)
    return {"sliding_window": int(left[1]) + 1, "sliding_window_every": every}


def _latent_attention(settings: Settings) -> dict[str, int]:
    defaults = {
        "q_lora_rank": 0, "kv_lora_rank": 32, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }  # fmt: skip
    return {
        name: count_of(settings, f"model.latent_attention.{name}", default)
        for name, default in defaults.items()
    }


def _experts(settings: Settings, ffn_hidden: int, layers: int) -> dict[str, Any]:
    found = {
        "count": count_of(settings, "model.experts.count", 1),
        "top_k": count_of(settings, "model.experts.top_k", 2),
        "ffn_hidden": count_of(settings, "model.experts.ffn_hidden", ffn_hidden),
        "groups": count_of(settings, "model.experts.groups", 0),
        "top_groups": count_of(settings, "model.experts.top_groups", 0),
        "shared_ffn_hidden": count_of(settings, "model.experts.shared_ffn_hidden", 0),
        "shared_gate": switch_of(settings, "model.experts.shared_gate"),
        "router_bias": switch_of(settings, "model.experts.router_bias"),
        "capacity_factor": settings.get("moe_expert_capacity_factor"),
        **_expert_layers(settings, layers),
    }
    return {name: value for name, value in found.items() if value or name == "count"}


def _expert_layers(settings: Settings, layers: int) -> dict[str, int]:
    """Which layers have experts: leading dense ones, and then one in so many."""
    given = settings.get("moe_layer_freq")
    if given is None or given == 1:
        return {}
    pattern = _pattern(given, layers)
    if pattern is None:
        settings.fault("moe_layer_freq", "must be a number or a list such as [0]*3+[1]*58", given)
        return {}
    for every in (1, *range(2, layers + 1)):
        first = 0 if every > 1 else next((i for i, has in enumerate(pattern) if has), 0)
        if pattern == [i >= first and (i + 1) % every == 0 for i in range(layers)]:
            return {"first_dense_layers": first, "every": every}
    every = layers // sum(pattern) if sum(pattern) else 0
    if every and pattern == [i % every == 0 for i in range(layers)] and layers % every == 0:
        settings.assumed.append(f"the last, not the first, of every {every} layers has experts")
        return {"every": every}
    rule = "must be leading dense layers, or experts in every N layers; others are not modelled"
    settings.fault("moe_layer_freq", rule, given)
    return {}


def _pattern(given: object, layers: int) -> list[bool] | None:
    """Whether each layer has experts; None where that is not said in a known way."""
    if isinstance(given, int) and given > 0:
        return [i % given == 0 for i in range(layers)]
    if isinstance(given, str):
        try:
            given = _listed(ast.parse(given.strip(), mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    if isinstance(given, list) and len(given) == layers and set(given) <= {0, 1}:
        return [bool(has) for has in given]
    return None


def _listed(node: ast.expr) -> list[int]:
    """A list written as a sum of repeated lists; nothing else is evaluated.

    Raises:
        ValueError: It is anything else, or longer than any model.
    """
    if isinstance(node, ast.List):
        items = [item.value for item in node.elts if isinstance(item, ast.Constant)]
        if len(items) == len(node.elts) and set(items) <= {0, 1}:
            return [int(item) for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _listed(node.left) + _listed(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        part, times = _listed(node.left), node.right
        number = times.value if isinstance(times, ast.Constant) else None
        if type(number) is int and len(part) * number <= _MOST_LAYERS:
            return part * number
    raise ValueError("no list of layers")


_FOLLOW = ("model.vocab", "model.max_positions", "model.multi_token_layers")
"""Fields that a tokenizer, a length or a trainer says, so that a named model keeps its own."""


def changed_model(settings: Settings, known: dict[str, Any] | str) -> dict[str, Any] | str:
    """A model that a file names, with what the same file states of it; faults go to ``settings``.

    Args:
        settings: What the file says.
        known: The model as a job writes it.
    """
    base = known if isinstance(known, dict) else {"base": known}
    changes: dict[str, Any] = {}
    for field, keys in COUNTS.items():
        if not field.startswith("model.") or field in _FOLLOW:
            continue
        value = settings.whole(*keys, default=None, least=1)
        if value is not None:
            *parents, name = field.removeprefix("model.").split(".")
            place = changes
            for parent in parents:
                place = place.setdefault(parent, {})
            place[name] = value
    if settings.get("multi_latent_attention") is False:
        rule = "is not modelled: it takes another attention than the named model"
        settings.fault("multi_latent_attention", rule, False, leave_out("multi_latent_attention"))
    return {**base, **changes} if changes else known
