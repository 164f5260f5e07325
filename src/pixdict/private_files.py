"""Files with personal data: only their owner reads them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_private(path: str | Path) -> None:
    """Create a file for SQLite that others cannot read; one that is there stays as it is. Its WAL has the same mode."""
    if str(path) != ":memory:":
        with suppress(OSError):  # it is there; or it cannot be made, which SQLite says
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
