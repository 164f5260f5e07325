"""A simulator of the central bank's directory: its REST API, rules and rate limits, durable in one SQLite file."""

from __future__ import annotations

from pixdict.directory.faults import Fault, Faults
from pixdict.directory.server import Directory
from pixdict.directory.settings import DirectorySettings, Participant

__all__ = ["Directory", "DirectorySettings", "Fault", "Faults", "Participant"]
