"""Is every combination refused that the guide lists as refused?"""

from __future__ import annotations

import re

import pytest
import yaml

from simulator import api
from simulator.described.load import load_job
from simulator.errors import ClustersimError
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "not-supported.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z]+\.[^`]*=[^`]*)` \|", PAGE, flags=re.MULTILINE)


def changes(row: str) -> dict[str, object]:
    pairs = (option.split("=") for option in row.split())
    return {path: yaml.safe_load(value) for path, value in pairs}


def test_the_page_lists_combinations():
    assert len(ROWS) >= 10


@pytest.mark.parametrize("row", ROWS)
def test_a_combination_that_the_page_lists_is_refused_by_one_of_its_fields(row):
    with pytest.raises(ClustersimError) as refused:
        api.simulate(load_job("llama3-8b-8xh100", changes(row)))
    assert any(path in str(refused.value) for path in changes(row))
