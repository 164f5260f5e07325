"""A store whose payloads go through codecs passes the shipped suite, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from batuta.codecs import Compression, Encryption, Keys
from batuta.errors import OutcomeUnknown
from batuta.journal.records import Change
from batuta.journal.store import Store
from batuta.stores.coded import coded
from batuta.stores.coded.store import CodedStore
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import conformance
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import live_worker, making, start_owned

CODECS = [Compression(least=0), Encryption(Keys.new("k1"))]
"""Nothing that is not encrypted is read."""


@pytest.fixture
async def make_store() -> AsyncIterator[MakeStore]:
    """What is around a store does not depend on it: the fastest is enough. tests/engine has others behind it."""
    database = MemoryDatabase()

    def new(namespace: str) -> Store:
        return coded(MemoryStore(database, namespace), CODECS)

    async with making(new, migrate=True) as make:
        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()


# What is written anew goes past the codecs, to the store behind them, which is also what keeps namespaces apart.
_OF_THE_STORE_INSIDE = [
    conformance.RewritingConformance,
    conformance.PlacedEventsConformance,
    conformance.TenantsConformance,
    conformance.ForeignRelativesConformance,
]
globals().update(conformance.suite(without=_OF_THE_STORE_INSIDE))


async def test_a_batch_whose_outcome_is_unknown_is_written_again_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each encryption gives another text; a store knows its own write by the entry."""
    worker = await live_worker(store)
    pen, busy = await start_owned(store, worker), await start_owned(store, worker)
    assert isinstance(store, CodedStore)
    change, inner = pen.change(2), store.inner
    write = inner.commit

    async def lose_reply(worker_id: str, changes: Sequence[Change]) -> None:
        await write(worker_id, changes)
        raise OutcomeUnknown("the reply was lost")

    monkeypatch.setattr(inner, "commit", lose_reply)
    with pytest.raises(OutcomeUnknown):
        await store.commit(worker.worker_id, [change])
    monkeypatch.undo()
    for _ in range(10):
        assert await busy.write(store, worker) is None
    assert await store.commit(worker.worker_id, [change]) == {}
    assert await store.journal(pen.run_id, after=0) == change.entries
