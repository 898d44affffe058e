"""Which network does a published row train?

Its columns say, a named public model says what they leave out, and where there is none the
conventions of similar models do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from simulator import cells
from simulator.cells import Row
from simulator.described.documents import merged
from simulator.described.load import load_model, model_names
from simulator.described.model import Model
from simulator.errors import InputError
from simulator.tables.spellings import packed_documents
from simulator.validate.published.framework_stacks import unsaid_settings

_OTHER_NETWORKS = re.compile(
    r"(?<![a-z])(m?t5|ul2|bart|whisper|mamba\d?|jamba|zamba|rwkv|hyena|retnet|nemotron-?h|vit|swin|dit"
    r"|unet|stable-?diffusion|sdxl|flux|resnet\d*|dlrm)(?![a-z])"
)
"""Networks that are no stack of like transformer layers."""

_GPT_VOCAB, _LLAMA_VOCAB = 50_257, 32_000
"""Tokens of GPT-2's and of Llama's tokenizer, which similar models took over.

Source: assumption, for rows that state no vocabulary and name no public model."""


_HEAD_DIM = re.compile(r"\bhead[_ ](?:dim|size) ?=? ?(\d+)|(?i:\bheads of (\d+)\b(?! and))")
"""Phrase in the notes that says how wide heads are."""

_WINDOW = re.compile(r"(?i)sliding window of (\d+)( tokens in (?:every|each) (?:second|other))?")
"""Phrase in the notes that says how many tokens layers attend to, and whether all of them do."""


DIMENSION_COLUMNS = (
    "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "gated_mlp",
)  # fmt: skip
"""Columns that a table may leave out where each row names a shipped model."""


def model_document(row: Row) -> dict[str, Any]:
    """The model of a row, ready for a job's ``model`` block.

    Raises:
        InputError: The network is none that is modelled, or a cell lacks what only it can say.
    """
    if _OTHER_NETWORKS.search(cells.word(row, "model")):
        rule = (
            f"{row['model']} is not a stack of equal transformer layers, the only kind that is "
            "modelled"
        )
        raise InputError.single("model", rule)
    known = known_model(cells.text(row, "model"))
    if known is None:
        return {**merged(_style(row), _stated(row)), **_assumed(row)}
    return {"base": known, **_without_what_it_contradicts(_stated(row), load_model(known))}


def names_shipped_model(row: Row) -> bool:
    """Whether the row's model has exactly the name of a shipped one."""
    return cells.text(row, "model") in model_names()


def with_shipped_dimensions(row: Row) -> Row:
    """The row with empty cells of dimensions filled from the shipped model of exactly its name.

    Only dimensions that the model states are taken: others follow from what the row states. The
    width of an expert is left to the model, whose dense layers may have another.
    """
    if not names_shipped_model(row):
        return row
    model = load_model(cells.text(row, "model"))
    is_known = {*model.model_fields_set, "gated_mlp"}
    wanted = [each for each in DIMENSION_COLUMNS if each in is_known and not cells.text(row, each)]
    if model.experts is not None:
        wanted = [each for each in wanted if each != "ffn_hidden"]
    stated = {each: getattr(model, each) for each in wanted}
    return {**row, **{each: str(value) for each, value in stated.items() if value is not None}}


def has_experts(model: Mapping[str, Any]) -> bool:
    """Whether a model block has routed experts, its own or those of its base."""
    base = model.get("base")
    of_base = load_model(base).experts if base else None
    return of_base is not None or "count" in model.get("experts", {})


def assumptions(row: Row) -> Iterator[str]:
    """What a prediction of the row assumes because its cells are empty."""
    if known_model(cells.text(row, "model")) is None:
        yield from (f"{name} {value}" for name, value in _assumed(row).items())
    usual = unsaid_settings(cells.text(row, "framework"), cells.text(row, "framework_version"))
    if not cells.text(row, "micro_batch") and not usual.get("one_microbatch"):
        yield "micro_batch 1"
    documents = packed_documents(cells.text(row, "notes"))
    if documents and not documents.is_stated:
        yield f"documents of {documents.tokens} tokens"


def known_model(name: str) -> str | None:
    """The shipped model of a name; ``llama3-70b-12L`` is cut down from one."""
    shipped = {_spelling(each): each for each in model_names()}
    shortened = re.sub(r"(?i)([-_ ]proxy)?[-_ ]\d+[-_ ]?l(ayers?)?$", "", name.strip())
    return shipped.get(_spelling(name)) or shipped.get(_spelling(shortened))


def _spelling(name: str) -> str:
    """A model's name without what spellings of it differ in."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower().rsplit("/", 1)[-1])
    plain = re.sub(r"^(meta|nvidia|mistralai|google)-", "", plain)
    plain = re.sub(r"-(instruct|chat|base|hf|it|pretrain(ing)?|v0\.\d)(?=-|$)", "", plain)
    plain = plain.replace("deepseekv", "deepseek-v")
    # "llama-3-8b" and "llama3-8b": a dash between a letter and a digit makes no difference.
    return re.sub(r"(?<=[a-z])-(?=\d)", "", plain)


def _stated(row: Row) -> dict[str, Any]:
    stated: dict[str, Any] = {"name": cells.text(row, "model") or "unnamed"}
    for field in ("layers", "hidden", "heads", "kv_heads", "vocab", "ffn_hidden"):
        if (value := cells.whole_if_stated(row, field)) is not None:
            stated[field] = value
    for field in ("gated_mlp", "tied_embeddings"):
        if (said := cells.flag(row, field)) is not None:
            stated[field] = said
    if head_dim := _HEAD_DIM.search(row.get("notes", "")):
        stated["head_dim"] = int(head_dim.group(1) or head_dim.group(2))
    if window := _WINDOW.search(row.get("notes", "")):
        every = 2 if window.group(2) else 1
        stated |= {"sliding_window": int(window.group(1)), "sliding_window_every": every}
    if cells.whole_if_stated(row, "experts"):
        width = stated.pop("ffn_hidden", None)
        layers = _layers_in_the_notes(row)
        experts = {**_experts(row, width), **layers.pop("experts", {})}
        stated |= {"experts": experts, "multi_token_layers": 0, **layers}
    return stated


def _experts(row: Row, width: int | None) -> dict[str, Any]:
    """Routed experts; what the row does not say of them is that of the named model."""
    stated = {
        "count": cells.whole_if_stated(row, "experts"),
        "top_k": cells.whole_if_stated(row, "top_k"),
        "ffn_hidden": width,
    }
    return {field: value for field, value in stated.items() if value is not None}


def _without_what_it_contradicts(stated: dict[str, Any], known: Model) -> dict[str, Any]:
    """The row's fields beside a public model, whose own structure decides what they mean."""
    fields = dict(stated)
    if known.latent_attention is not None:
        # Tables count one key head or as many as there are queries; compressed ones have no number.
        fields.pop("kv_heads", None)
        fields.pop("head_dim", None)
    experts = fields.get("experts")
    if (
        experts
        and known.experts
        and experts.get("count", known.experts.count) != known.experts.count
    ):
        fields["experts"] = {**experts, "groups": 1, "top_groups": 0}
    return fields


def _style(row: Row) -> dict[str, Any]:
    """What the columns leave open of a model that is no public one: that of similar models."""
    gated, has_experts = cells.flag(row, "gated_mlp"), cells.whole_if_stated(row, "experts")
    if not gated and not has_experts:
        return _gpt_style(cells.tokens(row, "seq_len"))
    llama = {"positions": "rotary", "normalisation": "rmsnorm", "activation": "silu"}
    return {**llama, **_structure_in_the_notes(row)} if has_experts else llama


def _gpt_style(seq_len: int) -> dict[str, Any]:
    """Models with a plain MLP are like GPT-2: learned positions, layer norm, biases."""
    return {
        "positions": "learned",
        "max_positions": seq_len,
        "normalisation": "layernorm",
        "activation": "gelu",
        "norm_bias": True,
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "tied_embeddings": True,
        "gated_mlp": False,
    }


def _layers_in_the_notes(row: Row) -> dict[str, Any]:
    """Which layers of a model with experts are dense, how wide those are, and its shared expert.

    A public model that was cut down need not have as many dense layers as it is known for.
    """
    notes = row.get("notes", "")
    model: dict[str, Any] = {}
    experts: dict[str, Any] = {}
    first = re.search(r"(?i)\b(\d+|first)( layers?)? dense\b(?! ffn of)", notes)
    if first:
        said = first.group(1).lower()
        experts["first_dense_layers"] = 1 if said == "first" else int(said)
    if every := re.search(r"(?i)MoE every (\d+)(?:st|nd|rd|th) layer", notes):
        experts["every"] = int(every.group(1))
    if capacity := re.search(r"(?i)\bcapacity[ _]factor[ =:]*(\d+(?:\.\d+)?)", notes):
        experts["capacity_factor"] = float(capacity.group(1))
    width = re.search(r"(?i)dense(?: layers?)?\W{0,2}(?:ffn )?(\d{3,})", notes)
    if width:
        model["ffn_hidden"] = int(width.group(1))
    shared = re.search(r"(\d+) shared experts? (?:of )?(\d+)", notes)
    together = re.search(r"shared experts? \((\d+)\)", notes)
    if shared:
        experts["shared_ffn_hidden"] = int(shared.group(1)) * int(shared.group(2))
    elif together:
        experts["shared_ffn_hidden"] = int(together.group(1))
    return {**model, **({"experts": experts} if experts else {})}


def _structure_in_the_notes(row: Row) -> dict[str, Any]:
    """What only the notes say of a model with experts that is no public one.

    Without a word on them dense layers are as wide as an expert; sizes of heads of compressed
    attention are those of DeepSeek-V2, where it comes from.
    """
    notes = row.get("notes", "")
    model: dict[str, Any] = {"ffn_hidden": cells.whole(row, "ffn_hidden")}
    latent = re.search(r"MLA q_lora (\d+) kv_lora (\d+)", notes)
    if latent:
        model["latent_attention"] = {
            "q_lora_rank": int(latent.group(1)), "kv_lora_rank": int(latent.group(2)),
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        }  # fmt: skip
    return model


def _assumed(row: Row) -> dict[str, Any]:
    """Dimensions that a row without a public model leaves out and similar models agree on.

    Raises:
        InputError: One is missing that they do not agree on.
    """
    gated = cells.flag(row, "gated_mlp") or bool(cells.whole_if_stated(row, "experts"))
    assumed: dict[str, Any] = {}
    if not cells.text(row, "vocab"):
        assumed["vocab"] = _LLAMA_VOCAB if gated else _GPT_VOCAB
    for name in ("layers", "hidden", "heads"):
        cells.whole(row, name)
    if not cells.text(row, "ffn_hidden"):
        if gated:
            raise InputError.single("ffn_hidden", "must be a whole number, not ''")
        assumed["ffn_hidden"] = 4 * cells.whole(row, "hidden")
    return assumed
