"""Is a file that anybody named read with clear errors, and written whole or not at all?"""

from __future__ import annotations

import errno
import gzip
import os
import resource
import stat
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from simulator.chakra.trace_files import read_traces
from simulator.described.load import load_job, load_model, load_profile
from simulator.errors import InputError
from simulator.files import PICTURES, Unpacked, is_there, read_text, whole_file, write_whole
from simulator.planning.offers.offers_file import load_offers
from simulator.planning.sweep import Journal
from simulator.plots.style import save
from simulator.serving.described import load_serving
from simulator.tables.collective_table import cut_half_line
from simulator.validate.measured_trace.measured_step import read_step


def test_a_text_is_read_without_its_byte_order_mark(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: gpt2\n")
    assert read_text(path) == "model: gpt2\n"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xff\xfe\x00", "cannot be read: it is not UTF-8 text"),
        (b"a" * 11, "has more than 10 bytes, the limit for such a file"),
        (b"a" * 10 + "\N{EM DASH}".encode(), "has more than 10 bytes"),
    ],
)
def test_what_is_no_text_is_refused_with_what_would_do(tmp_path, content, rule):
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_text(path, "give a job", max_bytes=10)
    assert f"{path}: {rule}" in str(raised.value)
    assert str(raised.value).endswith("; give a job")


def test_the_field_that_names_a_file_is_named_with_it(tmp_path):
    with pytest.raises(InputError, match=r"plan\.schedule: .*none\.csv cannot be read: No such"):
        read_text(tmp_path / "none.csv", field="plan.schedule")


def test_a_pipe_is_read_like_a_file():
    reading, writing = os.pipe()
    os.write(writing, b"model: gpt2\n")
    os.close(writing)
    assert read_text(Path(f"/dev/fd/{reading}")) == "model: gpt2\n"
    os.close(reading)


def test_a_file_is_written_whole_into_a_new_folder_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "new" / "page.html"
    for text in ("first", "second"):
        write_whole(path, text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_written_anew_may_be_read_by_the_same(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    path.chmod(0o600)
    write_whole(path, "after")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("after", 0o600)


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path):
    path = tmp_path / ("x" * 250)
    with pytest.raises(OSError, match="too long") as raised:
        write_whole(path, "text")
    assert raised.value.filename == str(path)


def _write_half(path: Path) -> None:
    with whole_file(path) as draft:
        draft.write_text("half of it")
        raise KeyboardInterrupt


def test_writing_that_is_interrupted_leaves_what_was_there(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        _write_half(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed_and_a_pipe_written_to(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    link.symlink_to(target)
    write_whole(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reading, 10) == b"text"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reading)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "/", "/dev/null/x"])
@pytest.mark.parametrize("suffix", ["", ".yaml", ".json", ".et"])
def test_a_name_that_no_file_can_have_is_refused_as_one_that_is_not_there(name, suffix):
    path = Path(name + suffix)
    assert not is_there(path)
    for read in (load_job, load_model, load_profile, load_serving, load_offers):
        with pytest.raises(InputError):
            read(path)
    for read in (read_traces, lambda paths: read_step(paths[0])):
        with pytest.raises(InputError):
            read([path])


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b"])
def test_no_journal_can_have_a_name_that_no_file_can_have(name):
    with pytest.raises(InputError, match="cannot be written"), Journal(Path(name), {}):
        raise AssertionError


def test_a_large_bomb_is_refused_before_the_whole_of_it_could_unpack(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.files._ALWAYS_UNPACKED_BYTES", 2**20)
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(256):
            file.write(bytes(2**20))
    sizes = []
    with Unpacked(path) as file:
        chunks = iter(lambda: file.read(2**16), b"")
        with pytest.raises(OSError, match="more than 40 times its size"):
            sizes.extend(len(chunk) for chunk in chunks)
    assert sum(sizes) < 40 * path.stat().st_size / 1.5


def test_drafts_of_one_file_are_two_that_nobody_can_foresee(tmp_path):
    path = tmp_path / "page.html"
    with whole_file(path) as first, whole_file(path) as second:
        assert len({path, first, second}) == 3
        assert stat.S_IMODE(first.stat().st_mode) == 0o600


@pytest.mark.parametrize("suffix", PICTURES)
def test_a_picture_that_a_full_disk_ends_is_not_there(tmp_path, suffix):
    figure = Figure()
    figure.subplots().plot(range(1000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(figure, tmp_path / f"picture{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_half_a_line_is_cut_off_a_table_without_writing_the_rest_anew(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"id,bytes\r\na,1\r\nb,")
    before = path.stat().st_ino
    cut_half_line(path)
    assert (path.read_bytes(), path.stat().st_ino) == (b"id,bytes\r\na,1\r\n", before)


def test_a_disk_without_room_is_told_with_the_file_that_the_user_named(tmp_path):
    path = tmp_path / "page.html"
    with pytest.raises(OSError, match="No space") as caught, whole_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
