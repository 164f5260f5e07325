"""core and connect of pixdict talk through a real Pulsar."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pixdict.dev.stand import Options, stand
from pixdict.scenarios import SCENARIOS, Player
from tests.extra.bus.broker import URL_VARIABLE, PulsarServer

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]


async def test_keys_are_created_through_the_broker_and_a_killed_worker_loses_none(tmp_path: Path) -> None:
    given = os.environ.get(URL_VARIABLE)
    server = None if given else PulsarServer()
    try:
        url = given or (server.url if server else "")
        async with stand(tmp_path, Options(port=0, open_for=1.0, wait=20.0, bus=url)) as running:
            player = Player(running, SCENARIOS)
            for name in ("duplicates", "worker-killed"):
                ledger = await player.begin(name)
                assert ledger.passed, ledger
            status = await running.client.bus.status()
            assert {one.name for one in status.topics} >= {"dict-requests", "dict-responses"}
    finally:
        if server is not None:
            server.close()
