"""Are the generated pages of the guide those of this code, and do they say enough?"""

from __future__ import annotations

import re

from simulator.described.json_schemas import job_schema
from simulator.serving.described import serving_schema
from tests.command_reference import COMMANDS_PAGE, commands, commands_page
from tests.models_and_systems import KINDS, MODELS_PAGE, models_and_systems_page
from tests.reference import (
    API_PAGE,
    FIELDS_PAGE,
    ROOT,
    SERVING_FIELDS_PAGE,
    STACKS_PAGE,
    api_page,
    fields_page,
    serving_fields_page,
    stacks_page,
)


def test_the_page_of_the_python_api_is_that_of_the_docstrings():
    assert API_PAGE.read_text(encoding="utf-8") == api_page(), "run make generated"


def test_the_page_of_the_fields_is_that_of_the_specifications():
    assert FIELDS_PAGE.read_text(encoding="utf-8") == fields_page(), "run make generated"


def test_the_page_of_serving_fields_is_that_of_the_specifications():
    written = SERVING_FIELDS_PAGE.read_text(encoding="utf-8")
    assert written == serving_fields_page(), "run make generated"


def test_the_page_of_the_commands_is_that_of_the_commands():
    assert COMMANDS_PAGE.read_text(encoding="utf-8") == commands_page(), "run make generated"


def test_every_command_and_every_option_says_what_it_is_for():
    for name, command in commands():
        assert command.help, name
        bare = [each.name for each in command.params if not each.help]
        assert bare == [], name


def test_every_command_that_can_end_with_1_says_when():
    ends = {name for name, command in commands() if "Exits with 1 if" in command.help}
    assert {"run", "memory", "plan", "capacity", "rent", "limits", "balance"} <= ends


def test_make_generated_writes_every_schema_and_every_page():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\ngenerated:")[2].partition("\n\n")[0]
    schemas = [*ROOT.glob("hardware_profiles/schema.json"), *ROOT.glob("workloads/**/schema.json")]
    written = {ROOT / name for name in re.findall(r"> (\S+\.json)", rule)}
    assert written == set(schemas)
    assert rule.endswith("-m tests.reference")


def test_the_page_of_the_stacks_is_that_of_the_facts():
    assert STACKS_PAGE.read_text(encoding="utf-8") == stacks_page(), "run make docs"


def test_every_block_of_fields_is_on_the_page():
    aside = {"Provenance", "ModelChanges"}
    shown = set(re.findall(r"^### (\w+)$", fields_page(), flags=re.MULTILINE))
    assert set(job_schema()["$defs"]) - shown == aside
    of_serving = set(re.findall(r"^### (\w+)$", serving_fields_page(), flags=re.MULTILINE))
    assert of_serving == set(serving_schema()["$defs"])


def test_every_field_says_what_it_means():
    pages = fields_page() + serving_fields_page()
    rows = re.findall(r"^\| `(\S+)` \|.*\| (.*) \|$", pages, flags=re.MULTILINE)
    assert len(rows) > 200
    assert [field for field, meaning in rows if not meaning.strip()] == []


def test_everything_that_a_script_may_use_says_what_it_is():
    bare = re.findall(r"^#+ (.+)\n\n(?:    .*\n\n)?(?=#)", api_page(), flags=re.MULTILINE)
    assert bare == ["Functions", "Classes", "Answers", "Parts of a result"]


def test_the_page_of_models_and_systems_is_that_of_the_shipped_files():
    assert MODELS_PAGE.read_text(encoding="utf-8") == models_and_systems_page(), "make generated"


def test_every_number_of_a_system_is_counted_under_its_source():
    from simulator.described.load import load_profile, profile_names

    rows = [line for line in models_and_systems_page().splitlines() if line.startswith("| `")]
    counts = {row.split("`")[1]: row.split(" | ")[3 : 3 + len(KINDS)] for row in rows}
    for name in profile_names():
        assert sum(map(int, counts[name])) == len(load_profile(name).provenance)
