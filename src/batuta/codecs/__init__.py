"""Codecs that payloads go through on their way into the store and out: encryption, compression, your own."""

from __future__ import annotations

from batuta.codecs.aes import Encryption
from batuta.codecs.base import Bound, PayloadCodec
from batuta.codecs.compression import Compression
from batuta.codecs.keys import Keys

__all__ = ["Bound", "Compression", "Encryption", "Keys", "PayloadCodec"]
