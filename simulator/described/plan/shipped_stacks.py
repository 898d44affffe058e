"""Which frameworks are known, and where does each of their facts come from?

Facts and the evidence for each lie in ``simulator/facts/stacks``; ``docs/stacks.md`` shows them.
Facts that change between releases are those of the release that a plan names, or of the newest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from simulator.described.faults import nearest_hint
from simulator.described.other_names import value_hint
from simulator.described.plan.releases import groups_in_effect, split_release
from simulator.described.plan.stack import Stack
from simulator.facts import fact_files, shipped_facts


class Evidence(NamedTuple):
    """Where a fact comes from.

    Attributes:
        source: One of :data:`simulator.facts.EVIDENCE`.
        reference: Document, measurement or runs.
        found_with: Sources of published runs whose errors were in view, where it was found in
            residuals.
    """

    source: str
    reference: str
    found_with: tuple[str, ...] = ()


@cache
def evidence_of_stack(name: str) -> Mapping[str, Evidence]:
    """The evidence for each fact in which a shipped stack differs from the defaults of a Stack."""
    return {
        field: Evidence(
            group["source"], group.get("reference", ""), tuple(group.get("found_with", ()))
        )
        for group in _groups_of_facts(name)
        for field in group["values"]
    }


@cache
def _shipped_stack(name: str, releases: tuple[tuple[str, str], ...] = ()) -> Stack:
    groups = _groups_of_facts(name, dict(releases))
    values = [item for group in groups for item in group["values"].items()]
    description = shipped_facts(f"stacks/{name}")["description"]
    return Stack.model_validate({"description": description, **dict(values)})


def _groups_of_facts(
    name: str, releases: Mapping[str, str] = MappingProxyType({})
) -> list[Mapping[str, Any]]:
    """The groups of a stack that hold, behind those of the one that it is built on, if any."""
    content = shipped_facts(f"stacks/{name}")
    at = {**content.get("libraries", {}), **releases}
    of_base = _groups_of_facts(content["base"], at) if "base" in content else []
    own = [{"library": name, **group} for group in content["facts"]]
    return [*of_base, *groups_in_effect(own, at)]


def libraries_of_stack(name: str) -> frozenset[str]:
    """Libraries whose releases facts of a shipped stack follow."""
    content = shipped_facts(f"stacks/{name}")
    own = {group["library"] for group in content["facts"] if "library" in group}
    of_base = libraries_of_stack(content["base"]) if "base" in content else ()
    return frozenset(own.union(of_base))


class _Stacks(Mapping[str, Stack]):
    """Every shipped stack by its name; a file is read when its stack is first asked for."""

    def __getitem__(self, name: str) -> Stack:
        if name not in fact_files("stacks"):
            raise KeyError(name)
        return _shipped_stack(name)

    def __iter__(self) -> Iterator[str]:
        return iter(fact_files("stacks"))

    def __len__(self) -> int:
        return len(fact_files("stacks"))


STACKS: Mapping[str, Stack] = _Stacks()
"""Every known stack by the name a plan uses."""

DEFAULT_STACK = "megatron-core"
"""The stack of a plan that names none."""


def _stands_for(framework: str) -> str:
    """Which stack stands for a framework that is none itself; empty where none is known to."""
    for words, stack in shipped_facts("framework_names")["stacks"].items():
        if re.search(words, framework.lower()):
            return f"the stack for it is {stack!r}: {STACKS[stack].description}"
    return ""


def named_stack(
    value: object,
    libraries: Mapping[str, str] = MappingProxyType({}),
    is_compiled: bool | None = None,
) -> object:
    """The stack of a name, or of a block that changes facts of a ``base``.

    Args:
        value: The name, with ``@`` and a release if not the newest, or the block.
        libraries: Releases of what it is built on.
        is_compiled: Whether ``torch.compile`` rewrites its layers; None is as it does by default.

    Raises:
        ValueError: No stack has the name, or it has no such release.
    """
    if isinstance(value, str):
        name = value.partition("@")[0]
        if name not in STACKS:
            hint = value_hint("plan.stack", name) or nearest_hint(name, STACKS, _stands_for(name))
            raise ValueError(f"no such stack; {hint}")
        _, release = split_release(value)
        own = {} if release is None else {name: release}
        stack = _shipped_stack(name, tuple(sorted({**libraries, **own}.items())))
        return stack if is_compiled is None else _compiled(stack, name, is_compiled)
    if isinstance(value, Mapping):
        base = named_stack(value.get("base", DEFAULT_STACK), libraries, is_compiled)
        changes = {key: item for key, item in value.items() if key != "base"}
        return {**base.model_dump(by_alias=True), **changes} if isinstance(base, Stack) else base
    return value


@cache
def _compiled(stack: Stack, name: str, is_compiled: bool) -> Stack:
    facts = compiled_facts(stack) if is_compiled else _uncompiled_facts(stack, name)
    return stack.model_copy(update=dict(facts))


def _uncompiled_facts(stack: Stack, name: str) -> Mapping[str, Any]:
    """What a stack of a name does where ``torch.compile`` rewrites nothing."""
    return {**facts_of_compiler(is_compiled=False), **eager_beside(stack, name)}


def eager_beside(stack: Stack, name: str) -> Mapping[str, Any]:
    """What else a stack of a name does then, beside its layers."""
    return _instead(stack, shipped_facts("compiler")["eager_beside"].get(name, {}))


def _instead(stack: Stack, replaced: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Facts by name, in place of what a stack has."""
    return {
        name: values[value]
        for name, values in replaced.items()
        if (value := getattr(stack, name)) in values
    }


def compiled_facts(stack: Stack) -> Mapping[str, Any]:
    """What ``torch.compile`` makes of a stack's layers, by what they are without it."""
    replaced = _instead(stack, shipped_facts("compiler")["replaced"])
    return {**facts_of_compiler(is_compiled=True), **replaced}


def facts_of_compiler(*, is_compiled: bool) -> Mapping[str, Any]:
    """What ``torch.compile`` of a model's layers changes in a stack, or its absence."""
    found: Mapping[str, Any] = shipped_facts("compiler")["compiled" if is_compiled else "eager"]
    return found


def can_compile(name: str) -> bool:
    """Whether ``torch.compile`` may rewrite the layers of a stack."""
    return name in shipped_facts("compiler")["stacks"]
