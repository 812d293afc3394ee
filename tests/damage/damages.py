"""Damaged files: each load ends in an error with a name, or in exactly the value that was saved."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from laplace_metric.errors import LaplaceMetricError
from tests.damage.processes import child, ended
from tests.damage.writers import CommandError, Writer

Damage = Callable[[bytes, random.Random, bytes], bytes | None]
"""New content of a file, of the old one and that of another value; None: it is gone."""


def share(n: int, number: int, of: int) -> int:
    """The part of ``n`` that falls to one of several."""
    return n * (number + 1) // of - n * number // of


def _byte(content: bytes, chance: random.Random, other: bytes) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
    return bytes(changed)


def _truncate(content: bytes, chance: random.Random, other: bytes) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _zero(content: bytes, chance: random.Random, other: bytes) -> bytes:
    start = chance.randrange(len(content) + 1)
    length = min(chance.choice((16, 512, 4096)), len(content) - start)
    return content[:start] + bytes(length) + content[start + length :]


def _append(content: bytes, chance: random.Random, other: bytes) -> bytes:
    return content + chance.choice((b"\0", b" ", b"}", chance.randbytes(100)))


def _digit(content: bytes, chance: random.Random, other: bytes) -> bytes:
    changed = bytearray(content)
    places = [i for i, byte in enumerate(content) if 48 <= byte < 58]
    if not places:
        return _byte(content, chance, other)
    place = chance.choice(places)
    changed[place] = 48 + (changed[place] - 48 + chance.randrange(1, 10)) % 10
    return bytes(changed)


def _splice(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """The beginning of one value and the end of the other."""
    place = chance.randrange(1, len(content))
    return content[:place] + other[place:]


DAMAGES: dict[str, Damage] = {
    "byte": _byte,
    "truncate": _truncate,
    "zeros": _zero,
    "append": _append,
    "digit": _digit,
    "delete": lambda *_: None,
    "splice": _splice,
}


def damage(writer: Writer, place: Path, n: int, seed: int = 0) -> dict[str, object]:
    """A row of the table: n damages of what a writer wrote, each read on its own."""
    folder, other = place / "value", place / "other"
    for path in (folder, other):
        shutil.rmtree(path, ignore_errors=True)
    writer.write(folder, 0)
    writer.write(other, 0 if writer.resumes else 1)
    expected = writer.read(folder)
    ours, theirs = _contents(folder), _contents(other)
    outcomes: Counter[str] = Counter()
    made = 0
    while made < n:  # in children: what kills one is counted too
        reader, end = os.pipe()
        pid = child(
            lambda first=made, end=end: _read_all(
                writer, folder, ours, theirs, expected, range(first, n), seed, end
            )
        )
        os.close(end)
        with os.fdopen(reader) as lines:
            said = [line.split(maxsplit=1) for line in lines]
        code = ended(pid)
        for outcome, *more in said:
            outcomes[outcome] += 1
            if more:
                print(f"{writer.name}: {outcome}: {more[0].strip()}", flush=True)
        made += len(said)
        if code:
            outcomes["unnamed"] += 1
            made += 1
            print(f"{writer.name}: damage {made - 1} ended the process with {code}", flush=True)
    keys = ("named", "same", "unnamed", "wrong")
    return {"saved by": writer.name, "damages": n, **{key: outcomes[key] for key in keys}}


def _contents(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _read_all(
    writer: Writer,
    folder: Path,
    ours: dict[str, bytes],
    theirs: dict[str, bytes],
    expected: str,
    numbers: range,
    seed: int,
    end: int,
) -> None:
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        kind, name = chance.choice(list(DAMAGES)), chance.choice(list(ours))
        others = [n for n in theirs if Path(n).suffix == Path(name).suffix]
        content = DAMAGES[kind](ours[name], chance, theirs[chance.choice(others)])
        _restore(folder, ours)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        outcome = _outcome(writer, folder, expected)
        if outcome not in ("named", "same"):
            outcome += f" by {kind} of {name} (number {number})"
        os.write(end, f"{outcome}\n".encode())


def _restore(folder: Path, contents: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _outcome(writer: Writer, folder: Path, expected: str) -> str:
    try:
        return "same" if writer.read(folder) == expected else "wrong"
    except CommandError as error:
        named = error.code == 2 and "\n" not in error.text
        return "named" if named else f"unnamed {error.text!r:.200}"
    except LaplaceMetricError:
        return "named"
    except Exception as error:
        return f"unnamed {error!r:.200}"
