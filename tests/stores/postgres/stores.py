"""Stores for tests: their server does not look as if it had just been started."""

from __future__ import annotations

from collections.abc import Callable

from batuta.stores.postgres import PostgresStore

UPTIME_SECONDS = 3_600


def long_up(url: str) -> Callable[[str], PostgresStore]:
    """Makes stores on that database, by namespace, whose clocks go ahead."""

    def new(namespace: str) -> PostgresStore:
        store = PostgresStore(url, namespace=namespace)
        store.shift_clock(UPTIME_SECONDS)
        return store

    return new
