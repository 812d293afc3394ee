"""Writers and readers at once, killed writers, full disks, foreign files, flipped digits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, WriteError
from laplace_metric.io import hidden_folder, locked

KIND = files.FileKind("thing", "a saved thing", 1)
posix = pytest.mark.skipif(os.name != "posix", reason="forks, kills and limits file sizes")


def save(folder, number):
    files.write(folder, {"n": number}, {"x": torch.full((9_000,), number)}, KIND)


def load(folder):
    content, tensors = files.read(folder, KIND)
    assert tensors["x"].eq(content["n"]).all()
    return content["n"]


def names(folder):
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


COMMON = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.test_saving import KIND, load, save, names
folder = Path(sys.argv[1])

def child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

RACE = """
def writer(first):
    for number in range(first, first + 30):
        save(folder, number)
    return 0

def reader():
    read = set()
    while not (folder / "done").exists():
        read.add(load(folder))
    return 0 if len(read) > 3 else 2

save(folder, 255)
reading = child(reader)
writing = [child(lambda: writer(0)), child(lambda: writer(100))]
codes = [ended(pid) for pid in writing]
(folder / "done").touch()
print(codes, ended(reading), load(folder) in (29, 129), names(folder))
"""

KILLS = """
random.seed(0)
save(folder, 0)

def endless():
    number = 0
    while True:
        number = (number + 1) % 200
        save(folder, number)

for _ in range(40):
    pid = child(endless)
    time.sleep(random.uniform(0.002, 0.04))
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL
    load(folder)
save(folder, 7)
print(load(folder), names(folder))
"""

DISK = """
import resource
from laplace_metric.errors import WriteError
from laplace_metric.io import write_atomically
save(folder, 1)
write_atomically(folder / "page.html", "old")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
said = []
for write in (
    lambda: save(folder, 2),
    lambda: write_atomically(folder / "page.html", "new" * 30_000),
):
    try:
        write()
    except WriteError as error:
        said.append("cannot be written" in str(error) and "is kept" in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(said, load(folder), (folder / "page.html").read_text(), names(folder))
"""


def run(code, *arguments):
    root = str(Path(__file__).parents[1])
    process = subprocess.run(
        [sys.executable, "-c", COMMON + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        cwd=root,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.strip()


@posix
def test_two_writers_and_a_reader_lose_nothing(tmp_path):
    left = "['done', 'thing', 'thing.json']"
    assert run(RACE, tmp_path) == f"[0, 0] 0 True {left}"


@posix
def test_killed_writers_lose_nothing_and_leave_nothing(tmp_path):
    assert run(KILLS, tmp_path) == "7 ['thing', 'thing.json']"


@posix
@pytest.mark.parametrize("limit", [100, 60_000])  # most of the tensors
def test_on_a_full_disk_the_old_value_is_kept(limit, tmp_path):
    assert run(DISK, tmp_path, limit) == "[True, True] 1 old ['page.html', 'thing', 'thing.json']"


def test_foreign_files_are_left_alone(tmp_path):
    foreign = ("thing-notes.md", "thing-0123456789abcdef.txt", ".thing.swp", ".thing.json.tmp")
    for name in foreign:
        (tmp_path / name).write_text("mine")
    (tmp_path / "thing-folder").mkdir()
    (tmp_path / "thing-fedcba9876543210.safetensors").write_text("of a copy of mine")
    for number in (1, 2):
        save(tmp_path, number)
    assert all((tmp_path / name).read_text() == "mine" for name in foreign)
    assert len(list(tmp_path.iterdir())) == len(foreign) + 2 + 2


def test_a_json_cannot_make_save_delete_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "a" / "mine.txt").touch()
    save(tmp_path / "a", 1)
    path = tmp_path / "a" / KIND.index
    for name in ("mine.txt", "../mine.txt", ["mine.txt"], {"x": 1}, None):
        path.write_text(json.dumps({**json.loads(path.read_text()), "tensors": name}))
        save(tmp_path / "a", 2)
        assert (tmp_path / "mine.txt").exists()
        assert (tmp_path / "a" / "mine.txt").exists()


def test_a_live_writer_is_not_disturbed(tmp_path):
    """Its hidden folder stays, and the next one waits for its turn."""
    with hidden_folder(tmp_path, "thing", KIND) as hidden:
        held = pytest.raises(WriteError, match="another process, which holds .thing.lock")
        with held, locked(tmp_path / ".thing.lock", seconds=0.0):
            raise AssertionError
        assert hidden.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_digit_is_noticed(tmp_path):
    files.write(tmp_path, {"n": 1.25, "f": [1 / 3, 12], "s": {"a9": "b7"}}, {}, KIND)
    path = tmp_path / KIND.index
    text = path.read_text()
    value = json.loads(text)
    for match in re.finditer(r"\d", text):
        digit = str((int(match[0]) + 1) % 10)
        changed = text[: match.start()] + digit + text[match.end() :]
        path.write_text(changed)
        try:
            same = json.loads(changed) == value  # the last digit of 1/3 may name the same number
        except ValueError:
            same = False
        if not same:
            with pytest.raises(FileFormatError):
                files.read(tmp_path, KIND)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "\0",
        b"\xff\xfe",
        '{"format": "laplace_metric.thing", "version": ' + "9" * 5000 + "}",
        '{"format": "laplace_metric.thing", "version": 1, "x": ' + "[" * 800 + "]" * 800 + "}",
        "1" * 10_000,
        "null",
        '"text"',
    ],
)
def test_malformed_json_is_named(text, tmp_path):
    (tmp_path / KIND.index).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileFormatError):
        files.read(tmp_path, KIND)


@pytest.mark.parametrize("name", ["\0", "a\0b", "\ud800", "../x", "", 3, None, [], "x" * 9999])
@pytest.mark.parametrize("key", ["tensors", "heads", "sha256"])
def test_hostile_file_names_are_named(key, name, tmp_path):
    save(tmp_path, 1)
    path = tmp_path / KIND.index
    path.write_text(json.dumps(files.sealed({**json.loads(path.read_text()), key: name})))
    with pytest.raises(FileFormatError):
        files.read(tmp_path, KIND)


def test_mapped_files_are_checked_as_asked(tmp_path):
    save(tmp_path, 3)
    (tensors,) = tmp_path.glob("*.safetensors")
    whole = bytearray(tensors.read_bytes())
    for position, noticed in ((20, True), (len(whole) - 1, False)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        tensors.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="sha256"):
            files.read(tmp_path, KIND, mapped=True, verify=True)
        if noticed:
            with pytest.raises(FileFormatError, match="sha256"):
                files.read(tmp_path, KIND, mapped=True)
    tensors.write_bytes(whole[:-1])
    with pytest.raises(FileFormatError, match="sha256"):
        files.read(tmp_path, KIND, mapped=True)


def test_a_digest_knows_order_shapes_and_types():
    row, column = torch.zeros(1, 2), torch.zeros(2, 1)
    parts = ([row], [column], [row.double()], [row, column], [column, row], [row + 1])
    assert len({files.digest("a", part) for part in parts} | {files.digest("b", [row])}) == 7


def test_a_json_without_end_is_refused(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr("laplace_metric.io.JSON_BYTES", 100)
    with pytest.raises(FileFormatError, match="it has more than 100 bytes"):
        load(tmp_path)
