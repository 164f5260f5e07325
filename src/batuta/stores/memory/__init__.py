"""The reference store: dictionaries under one lock. The other stores must behave like it."""

from batuta.stores.memory.store import MemoryStore
from batuta.stores.memory.tables import MemoryDatabase

__all__ = ["MemoryDatabase", "MemoryStore"]
