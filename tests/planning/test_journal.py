"""Does a journal give back what was kept, and nothing else?"""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.planning.sweep import Journal

WHO = {"job": "a", "grid": "b"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.csv.journal"


def kept(path, identity=WHO):
    with Journal(path, identity) as journal:
        return dict(journal.rows)


def test_rows_are_there_when_the_journal_is_opened_again(path):
    with Journal(path, WHO) as journal:
        journal.add(2, {"step_time_s": 0.1 + 0.2, "fits": True})
    assert kept(path) == {2: {"step_time_s": 0.1 + 0.2, "fits": True}}


def test_a_row_is_on_disk_before_the_journal_is_closed(path):
    with Journal(path, WHO) as journal:
        journal.add(0, {"fits": True})
        copy = path.with_name("copy")  # nobody else may open the journal itself
        copy.write_bytes(path.read_bytes())
        assert kept(copy) == {0: {"fits": True}}


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_cut_off_is_dropped_and_written_anew(path, cut):
    with Journal(path, WHO) as journal:
        journal.add(0, {"fits": True})
        journal.add(1, {"fits": False})
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, WHO) as journal:
        assert journal.rows == {0: {"fits": True}}
        journal.add(1, {"fits": False})
    assert kept(path) == {0: {"fits": True}, 1: {"fits": False}}


def test_a_journal_whose_first_line_was_cut_off_starts_anew(path):
    path.write_bytes(b'{"job": "a"')
    assert kept(path) == {}
    assert kept(path) == {}


def test_the_rows_of_another_sweep_are_refused_with_what_differs(path):
    kept(path)
    with pytest.raises(InputError, match=r"another sweep, of another grid.*--fresh"):
        kept(path, {**WHO, "grid": "c"})


def test_a_file_that_is_no_journal_is_left_alone(path):
    path.write_text("tp,pp\n1,2\n")
    with pytest.raises(InputError, match="is not a journal"):
        kept(path)
    assert path.read_text() == "tp,pp\n1,2\n"


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        kept(tmp_path / "file" / "sweep.csv.journal")


def test_a_cleared_journal_takes_the_rows_of_any_sweep(path):
    with Journal(path, WHO) as journal:
        journal.add(0, {"fits": True})
    Journal.clear(path)
    assert kept(path, {"job": "c"}) == {}


def test_a_journal_that_is_not_there_is_clear(path):
    Journal.clear(path)
    assert not path.exists()
