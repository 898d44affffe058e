"""Does the documentation tell the truth?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.errors import InputError
from tests.pages import PAGES, ROOT, written_now
from tests.reference import API_PAGE, FIELDS_PAGE, STACKS_PAGE

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_every_block_runs_and_shows_what_it_gives_now(page):
    assert written_now(page) == TEXTS[page], "run make docs and review the difference"


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p not in (API_PAGE, FIELDS_PAGE, STACKS_PAGE)],
    ids=lambda page: page.name,
)
def test_every_file_that_a_page_of_ours_names_exists(page):
    folders = "simulator|workloads|hardware_profiles|reports|tests|docs"
    names = re.findall(rf"`((?:{folders})/[\w./-]+)`", TEXTS[page])
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_readme_says_what_the_reports_on_gpus_do():
    h100, h200 = (told_errors(ROOT / "reports" / "gpu" / name) for name in ("", "h200"))
    said = " ".join(TEXTS[ROOT / "README.md"].split())
    told = (
        f"steps were {h100.first_sight} % off at first sight, and {h100.step} % on a profile that"
    )
    assert f"{told} was calibrated there" in said
    assert f"on the H200, {h200.first_sight} and {h200.step} %" in said
    assert f"memory is {h100.allocated} and {h200.allocated} % off" in said
    assert h100.captured == h200.captured
    assert f"and {h100.captured} % from captured code" in said


class ToldErrors(NamedTuple):
    """Mean errors of runs that a job can tell, as a report on a GPU states them."""

    first_sight: str
    step: str
    allocated: str
    captured: str


def told_errors(folder: Path) -> ToldErrors:
    report = (folder / "raw.md").read_text(encoding="utf-8")
    told = report.partition("## Runs whose code a job can tell")[2].partition("![")[0]
    rows = {line.split(" | ")[0]: line.split(" | ")[1:3] for line in told.splitlines()}
    (first_sight, _), (step, allocated), (_, captured) = (
        [cell.split(" / ")[0] for cell in rows[f"| {name}"]]
        for name in (
            "first sight, shipped profile",
            "calibrated profile",
            "calibrated profile, captured code",
        )
    )
    return ToldErrors(first_sight, step, allocated, captured)


@every_page
def test_every_link_of_a_page_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[page])
    assert [link for link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file exists, and has the heading if one is meant."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """Headings of a page, as links spell them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_of_the_guide_is_in_its_index():
    index = TEXTS[ROOT / "docs" / "README.md"]
    guide = [page.name for page in PAGES if page.parent.name == "docs"]
    assert [name for name in guide if name != "README.md" and f"({name})" not in index] == []


def page_of(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


JOB_BLOCK = """\
```yaml
# job.yaml
model: {base: llama3.2-1b, layers: 2}
cluster: {profile: h100-sxm-80gb, gpus: 1}
batch: {global: 1, seq_len: 512}
```
"""


def test_stale_output_is_replaced_by_what_is_printed_now(tmp_path):
    page = page_of(
        tmp_path, f"{JOB_BLOCK}\n```console\n$ clustersim run job.yaml | head -n 1\n?\n```\n"
    )
    shown = written_now(page)
    assert (
        "\n$ clustersim run job.yaml | head -n 1\nllama3.2-1b on 1 x h100-sxm-80gb, dp1\n" in shown
    )
    assert "?" not in shown


def test_what_python_prints_is_shown_where_a_page_asks_for_it(tmp_path):
    page = page_of(
        tmp_path, "```python\nx = 2\n```\n\n```python\nprint(x)\n```\n\n```text\n3\n```\n"
    )
    assert written_now(page).endswith("```text\n2\n```\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{JOB_BLOCK}\n```console\n$ clustersim run none.yaml\n```\n", "exits with 2"),
        ("<!-- exits with 1 -->\n```console\n$ clustersim models list\n```\n", "exits with 0"),
        ("```console\n$ rm job.yaml\n```\n", "no way to run rm"),
        ("```console\nnothing\n```\n", "without a command"),
        ("```sh\nclustersim run job.yaml --fast\n```\n", "No such option"),
        ("```sh\nmake coffee\n```\n", "no make coffee"),
        ("```sh\npython -m simulator.coffee\n```\n", "no simulator.coffee"),
        ("```sh\ncurl example.org\n```\n", "curl"),
        ("```yaml\n# README.md\nmodel: gpt2\n```\n", "writes to README.md of the repository"),
        ("```yaml\n# docs/x.yaml\nmodel: gpt2\n```\n", "writes to docs/x.yaml of the repository"),
    ],
)
def test_a_page_that_promises_what_does_not_happen_is_refused(tmp_path, text, fault):
    with pytest.raises(AssertionError, match=fault):
        written_now(page_of(tmp_path, text))


def test_an_example_in_python_or_a_job_that_fails_is_not_passed_over(tmp_path):
    with pytest.raises(ZeroDivisionError):
        written_now(page_of(tmp_path, "```python\n1 / 0\n```\n"))
    with pytest.raises(InputError, match="no such field"):
        written_now(page_of(tmp_path, "```yaml\nmodell: gpt2\n```\n"))


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path):
    page = page_of(tmp_path, "# One idea, said twice\n")
    assert leads_somewhere(page, "#one-idea-said-twice")
    assert leads_somewhere(page, "page.md#one-idea-said-twice")
    assert not leads_somewhere(page, "#another-idea")
    assert not leads_somewhere(page, "none.md")
