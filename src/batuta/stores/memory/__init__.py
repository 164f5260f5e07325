"""The reference store: dictionaries under one lock. What it does is what the other stores must do."""

from batuta.stores.memory.store import MemoryStore
from batuta.stores.memory.tables import MemoryDatabase

__all__ = ["MemoryDatabase", "MemoryStore"]
