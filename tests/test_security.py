"""Files of strangers are data: nothing in them runs, and their names stay text on every page."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.errors import InputError
from simulator.studio.web_app import is_loopback, new_token

ROOT = Path(__file__).parent.parent
OWN_PICKLES = {"ranks/launch.py", "capture/recording/pipelines.py"}
"""They read what our own processes have written, in folders that nobody else may open."""


@pytest.fixture(scope="module")
def calls():
    """Files that call a function, by its name."""
    found = defaultdict(set)
    for path in (ROOT / "simulator").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"\b(eval|exec|load|loads|system)\(", text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    place = path.relative_to(ROOT / "simulator").as_posix()
                    found[ast.unparse(node.func)].add(place)
    return found


@pytest.mark.parametrize("name", ["eval", "exec", "yaml.unsafe_load", "marshal.loads", "os.system"])
def test_nothing_that_runs_texts_is_called(name, calls):
    assert calls[name] == set()


def test_pickles_are_read_only_where_our_own_processes_wrote_them(calls):
    assert calls["pickle.loads"] | calls["pickle.load"] <= OWN_PICKLES


class Elements(HTMLParser):
    """Names of the elements of a page, with their attributes, in order."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, [name for name, _ in attributes]))


def result_of(name):
    model = {"name": name, "base": "gpt2", "layers": 2}
    return sim.simulate(
        sim.load_job(
            {
                "model": model,
                "cluster": {"profile": "a100-sxm-80gb", "gpus": 1},
                "batch": {"global": 1, "seq_len": 128},
            }
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def plain(folder):
    return Elements(result_of("plain").write_html(folder / "plain.html").read_text("utf-8")).found


NAMES = st.lists(
    st.sampled_from(
        ["<script>", "</script>", "<b", ">", "&lt;", "&", "]]>", "<![CDATA[", "<!--", "{{7*7}}",
         '"', "'", "$x^2$", "\\\\", "%s", "javascript:", "\u202e", "name"]
    ), min_size=1, max_size=4,
).map("".join)  # fmt: skip


@settings(max_examples=2, deadline=None)
@given(name=NAMES)
@example(name="</script><script>alert(1)</script>$\\frac{1}{")
def test_markup_in_a_name_stays_text_on_pages_and_pictures(name, plain, folder):
    result = result_of(name)
    page = result.write_html(folder / "page.html").read_text("utf-8")
    assert Elements(page).found == plain
    picture = ElementTree.parse(result.plot_memory(folder / "memory.svg"))
    tags = {element.tag.rpartition("}")[2] for element in picture.iter()}
    assert not tags & {"script", "b", "a", "image", "foreignObject"}
    document = result.plot_memory(folder / "memory.pdf").read_bytes()
    assert not re.search(rb"/(JavaScript|JS|Launch|URI|OpenAction)\b", document)


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_the_studio_knows_which_addresses_only_this_machine_reaches(host, is_own):
    assert is_loopback(host) is is_own
    assert len(new_token()) >= 32


SECRET = "password: hunter2\n"
JOB = (
    "{{model: {model}, cluster: {{profile: {profile}, gpus: 8}}, "
    "batch: {{global: 8, seq_len: 1024}}}}"
)


@pytest.fixture
def project(tmp_path):
    """A folder with a job, and a file outside it."""
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    folder = tmp_path / "project"
    (folder / "jobs").mkdir(parents=True)
    (folder / "own").write_text(SECRET, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["../../secret", "{outside}/secret", "link.yaml"])
@pytest.mark.parametrize("field", ["model", "profile"])
def test_a_name_in_a_file_does_not_show_what_lies_outside_its_project(project, name, field):
    name = name.format(outside=project.parent)
    (project / "jobs" / "link.yaml").symlink_to(project.parent / "secret")
    names = {"model": "gpt2", "profile": "h100-sxm-80gb", field: name}
    file = project / "jobs" / "job.yaml"
    file.write_text(JOB.format(**names), encoding="utf-8")
    with pytest.raises(InputError, match="names a file outside the project") as refused:
        sim.load_job(file)
    assert "hunter2" not in str(refused.value)


def test_a_name_in_a_file_may_lead_to_its_project_and_one_of_the_user_anywhere(project):
    file = project / "jobs" / "job.yaml"
    file.write_text(JOB.format(model="gpt2", profile="../own"), encoding="utf-8")
    with pytest.raises(InputError, match="outside the project"):
        sim.load_job(file)
    with pytest.raises(InputError, match="there is no such name"):
        sim.load_job(file, {"cluster.profile": str(project.parent / "secret")})
    (project / ".git").mkdir()
    with pytest.raises(InputError, match="there is no such name"):
        sim.load_job(file)


def test_a_name_in_a_file_may_lead_to_a_profile_anywhere(project):
    shipped = (ROOT / "hardware_profiles" / "h100-sxm-80gb.yaml").read_text(encoding="utf-8")
    (project.parent / "ours.yaml").write_text(shipped, encoding="utf-8")
    file = project / "jobs" / "job.yaml"
    names = {"model": "gpt2", "profile": project.parent / "ours.yaml"}
    file.write_text(JOB.format(**names), encoding="utf-8")
    assert sim.load_job(file).cluster.profile.name == "h100-sxm-80gb"
