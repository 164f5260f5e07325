"""A store whose payloads go through codecs on their way in and out."""

from __future__ import annotations

from batuta.stores.coded.namespace_guard import guarded
from batuta.stores.coded.store import coded

__all__ = ["coded", "guarded"]
