"""The same names with other code, as a careless deploy would bring it: journals of `chaos.flows` do not replay."""

from __future__ import annotations

import asyncio
from typing import Any

from batuta import Workflow, workflow
from chaos.flows import Effects


@workflow
async def waits(name: str, seconds: float) -> str:
    """Releases before it reserves."""
    await Effects.release(name)
    await asyncio.sleep(seconds)
    return await Effects.reserve(name)


@workflow
async def steps(name: str, count: int, seconds: float) -> list[int]:
    """Unchanged in what it does, though its fingerprint is another."""
    return [await Effects.work(name, number, seconds) for number in range(count)]


ALL: list[Workflow[..., Any]] = [waits, steps]
