"""The Bridge: the directory as a gRPC service, and its client."""

from __future__ import annotations

from pixdict.bridge.client import BridgeClient
from pixdict.bridge.server import Bridge, serve
from pixdict.bridge.settings import BridgeSettings, Thresholds

__all__ = ["Bridge", "BridgeClient", "BridgeSettings", "Thresholds", "serve"]
