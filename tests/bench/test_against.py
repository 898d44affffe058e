"""Is it really the other commit that a comparison of speeds measures?"""

from __future__ import annotations

from tests.bench.cases import _process


def test_a_process_runs_the_package_of_the_tree_that_it_is_started_in(tmp_path, monkeypatch):
    (tmp_path / "of_that_tree.py").write_text("")
    monkeypatch.chdir(tmp_path)
    _process("-m", "of_that_tree")()()
