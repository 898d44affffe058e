"""Does an installed clustersim hold everything that a checkout has?"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("clustersim-*.whl"))


def shipped(folder: str, suffix: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob(f"*{suffix}")}


def test_the_wheel_holds_all_code_and_all_data(wheel):
    names = set(ZipFile(wheel).namelist())
    data = shipped("hardware_profiles", ".yaml") | shipped("workloads", ".yaml")
    facts = shipped("simulator/facts", ".yaml")
    assert facts
    other_name = "simulator/import_name/clustersim.py"
    code = shipped("simulator", ".py") - {other_name} | {"clustersim.py", "simulator/py.typed"}
    assert code | facts <= names
    assert {f"simulator/{name}" for name in data} <= names
    pages = {path for end in (".html", ".css", ".js") for path in shipped("simulator", end)}
    assert pages
    assert pages <= names
    assert not any(name.startswith(("tests/", "reports/")) for name in names)


def test_the_source_archive_holds_no_makers_of_reports(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("clustersim-*.tar.gz"))) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"simulator", "hardware_profiles", "workloads"} <= folders
    assert "reports" not in folders


def test_what_users_install_stands_in_the_lock_with_its_hashes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"^LOCKED := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    wanted = [*project["dependencies"]]
    wanted += [
        line for name in extras[1].split() for line in project["optional-dependencies"][name]
    ]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", lock.strip())
    locked = {}
    for entry in entries:
        assert "--hash=sha256:" in entry, entry
        name, version = re.match(r"([\w.-]+)==([\w.]+)", entry).groups()
        locked.setdefault(name.lower(), []).append(Version(version))
    for requirement in map(Requirement, wanted):
        versions = locked.get(requirement.name.lower(), [])
        assert any(map(requirement.specifier.contains, versions)), requirement


def test_every_maker_that_make_calls_can_be_run():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    makers = set(re.findall(r"-m (reports\.make\.[\w.]+)", makefile))
    assert len(makers) > 10
    for maker in makers:
        path = ROOT / maker.replace(".", "/")
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        code = file.read_text(encoding="utf-8")
        assert '\nif __name__ == "__main__":\n' in code, maker


def test_an_unpacked_wheel_finds_its_data_from_anywhere(wheel, tmp_path):
    site = tmp_path / "site"
    ZipFile(wheel).extractall(site)
    code = (
        "from simulator.described.load import *\n"
        "print(load_profile('h100-sxm-80gb').name, load_model('llama3.1-8b').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("h100-sxm-80gb llama3.1-8b\n", "")
