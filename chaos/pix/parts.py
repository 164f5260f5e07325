"""The parts of pixdict as processes of `pixdict serve`: started, killed, and started again at the same address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from chaos.process import TooSlow, until

Role = Literal["directory", "bridge", "connect", "core"]
ROLES: Final[tuple[Role, ...]] = ("directory", "bridge", "connect", "core")
ISPB: Final = "12345678"
QUICK: Final = {"BATUTA_LEASE": "2", "BATUTA_HEARTBEAT": "0.4", "BATUTA_DETECTION_GRACE": "0.3", "BATUTA_GRACE": "5"}
"""Work of a worker that was killed goes on within seconds."""
PLENTY: Final = ("CreateEntry=1000000/min", "CreateClaim=1000000/min", "GetEntry=1000000/min")


class Part:
    """One process. `told`: what it says once it serves."""

    def __init__(self, role: Role, arguments: list[str], log: Path) -> None:
        self.role, self._arguments, self._log = role, arguments, log
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0

    def start(self) -> None:
        self._begins = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pixdict", "serve", "--role", self.role, *self._arguments],
                env={**os.environ, **QUICK, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Since it was started."""
        return self._log.read_bytes()[self._begins :].decode(errors="replace")

    async def ready(self, seconds: float = 90.0) -> None:
        """Raises TooSlow."""
        await until(lambda: "Ctrl-C ends it" in self.said() or not self.is_alive, seconds, f"{self.role} ready")
        if not self.is_alive:
            raise TooSlow(f"{self.role} ended before it was ready:\n{self.said()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class House:
    """All four parts of one institution, on a PostgreSQL and a Valkey. A context manager: no process outlives it."""

    def __init__(self, folder: Path, store: str, redis: str, *, open_for: float = 2.0, wait: float = 3.0) -> None:
        self.folder, self.store = folder, store
        ports = dict(zip(ROLES, free_ports(len(ROLES)), strict=True))
        at = {role: f"127.0.0.1:{port}" for role, port in ports.items()}
        self.url, self.directory = f"http://{at['core']}", f"http://{at['directory']}"
        common = ["--store", store, "--redis", redis, "--participant", ISPB]
        limits = [word for limit in PLENTY for word in ("--limit", limit)]
        arguments: dict[Role, list[str]] = {
            "directory": ["--listen", at["directory"], "--path", str(folder / "directory.db")],
            "bridge": [*common, "--listen", at["bridge"], "--directory", self.directory, "--open-for", f"{open_for:g}"],
            "connect": [*common, "--bridge", at["bridge"], "--database", f"sqlite:///{folder / 'pixdict.db'}"],
            "core": [*common, "--listen", at["core"], "--bridge", at["bridge"], "--wait", f"{wait:g}", *limits],
        }
        self.parts = {role: Part(role, arguments[role], folder / f"{role}.log") for role in ROLES}

    async def start(self) -> None:
        """All of them, and wait until they serve."""
        self.parts["directory"].start()
        await self.parts["directory"].ready()
        for role in ROLES[1:]:
            self.parts[role].start()
        for role in ROLES[1:]:
            await self.parts[role].ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self.parts.values():
            part.kill()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, and stay a part's own from one life to the next."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
