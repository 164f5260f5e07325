"""The same caches as for batuta.cache: in memory and in a real Valkey, where no key may be left without a lifetime."""

from tests.cache.conftest import backend, cache, valkey

__all__ = ["backend", "cache", "valkey"]
