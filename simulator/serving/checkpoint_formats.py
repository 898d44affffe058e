"""Which format are the weights of a checkpoint in, as its name on the Hugging Face hub says?

An engine reads it from the checkpoint, so a launch line need not say it. Source: config.json of the
named repositories: ``weight_block_size`` of Qwen's and DeepSeek's own checkpoints in 8 bits,
``quant_method`` of gpt-oss. Others in 8 bits have a scale for each tensor or channel.
"""

from __future__ import annotations

import re

_FORMATS = (
    (r"mxfp4|gpt-oss(?!.*bf16)", "mxfp4"),
    (r"nvfp4|[-_]fp4", "nvfp4"),
    (r"int8|w8a8(?!.*fp8)", "int8"),
    (r"awq|gptq|int4|w4a16", "int4"),
    (r"^((qwen|deepseek-ai)/|[^/]*$|[./]).*(qwen\d|deepseek-v).*[-_]fp8", "fp8_block"),
    (r"[-_]fp8", "fp8"),
    (r"deepseek-(v3|r1)(?!.*(distill|bf16))", "fp8_block"),
)


def format_of_name(name: str) -> str | None:
    """The format that a checkpoint's name says, as ``deployment.weights`` has it; None if none.

    Args:
        name: Of the hub, or a path.
    """
    text = name.lower()
    return next((form for pattern, form in _FORMATS if re.search(pattern, text)), None)
