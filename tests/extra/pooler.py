"""Debian's pgbouncer in transaction mode, in front of the tests' PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

NOBODY = 65534
SESSIONS = 3
"""Sessions for each database: fewer than the store has connections, so that each transaction gets another."""


class Pooler:
    """One pgbouncer that this process started and ends. Fails, and does not skip, where there is none."""

    def __init__(self, server: str, **settings: str) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert program is not None, "pgbouncer is missing: run `make test-extra`, which installs it"
        self._directory = Path(tempfile.mkdtemp(prefix="batuta-pooler-"))
        self._directory.chmod(0o777)
        self._log = self._directory / "log"
        self.port = _free_port()
        users = self._directory / "users"
        users.touch(0o600)
        users.write_text(f'"postgres" "{urlsplit(server).password or ""}"\n')
        if os.geteuid() == 0:
            os.chown(users, NOBODY, NOBODY)
        (self._directory / "ini").write_text(self._configuration(server, settings))
        self._command = [program, "-q", str(self._directory / "ini")]
        self._start()

    def restart(self) -> None:
        """End it, with all its connections, and start it again on the same port."""
        self._stop()
        self._start()

    def _start(self) -> None:
        root = os.geteuid() == 0  # as whom it refuses to run
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=NOBODY if root else None,
            group=NOBODY if root else None,
            extra_groups=[] if root else None,
        )
        self._wait()

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)

    def url(self, direct: str, **options: str) -> str:
        """The address of the same database through the pooler."""
        parts = urlsplit(direct)
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        return urlunsplit(
            parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}", query=query)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _configuration(self, server: str, settings: dict[str, str]) -> str:
        parts = urlsplit(server)
        chosen = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "md5",
            "auth_file": str(self._directory / "users"),
            "pool_mode": "transaction",
            "default_pool_size": str(SESSIONS),
            "max_client_conn": "500",
            "logfile": str(self._log),
        } | settings
        lines = [f"{name} = {value}" for name, value in chosen.items()]
        return f"[databases]\n* = host={parts.hostname} port={parts.port}\n[pgbouncer]\n" + "\n".join(lines) + "\n"

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                said = self._log.read_text() if self._log.exists() else ""
                assert self._process.poll() is None, f"pgbouncer ended: {said}"
                assert time.monotonic() < deadline, f"pgbouncer does not answer: {said}"
                time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
