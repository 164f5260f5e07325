"""Payloads through a chain of codecs, bound to the place where they lie."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from msgspec import json

from batuta.codecs.base import Bound, PayloadCodec
from batuta.errors import InvalidInput, PayloadDamaged, PayloadSealed
from batuta.journal.coded import ADVICE, MARK, is_coded, join, split

_encode = json.Encoder().encode
_NAME = re.compile(r"[A-Za-z0-9]{1,20}")
_LABEL = re.compile(r"[A-Za-z0-9._-]{0,60}")


class Payloads:
    """The codecs of one store. Encodes in their order and decodes in the order that each payload says."""

    def __init__(self, codecs: Sequence[PayloadCodec], namespace: str) -> None:
        self._codecs, self._namespace = [(_tag(codec), codec) for codec in codecs], namespace
        self._by_name = {codec.name: codec for codec in codecs}
        if len(self._by_name) < len(codecs):
            raise InvalidInput("two codecs have the same name: give one of each kind")
        self._always = [codec.name for codec in codecs if codec.always]
        self._needed = [codec.name for codec in codecs if codec.always and not codec.plain]
        self.mark = "+".join(codec.mark for codec in codecs)
        """What can be read here: part of the fingerprints of this store's workers."""

    def bound(self, scope: object, *place: object) -> Bound:
        """A payload's place: the run (or schedule) that it belongs to, and what tells it from others there.

        As JSON: two that are not the same never look the same."""
        return Bound(_encode((self._namespace, scope)), _encode((self._namespace, scope, *place)))

    def encode(self, text: str, bound: Bound) -> str:
        """The text to be written. One that nothing was done to stays as it is."""
        return self._encode(text.encode(), bound) or (text if not is_coded(text) else join([], text.encode()))

    def decode(self, text: str, bound: Bound, *, plain: bool = False) -> str:
        """The text as it was. Raises PayloadSealed. `plain`: it may be one that the store writes itself."""
        if not is_coded(text):
            if self._needed and not plain:
                raise PayloadDamaged("it is not encrypted: where that may be, the word 'plain' stands among the keys")
            return text
        try:
            return self._decode(text, bound).decode()
        except UnicodeDecodeError:
            raise PayloadDamaged("it is not text") from None

    def encode_body(self, body: str, crc: int, bound: Bound) -> tuple[str, int]:
        """The same for an entry's body. Its checksum, of which the text could be guessed, goes with it."""
        found = self._encode(crc.to_bytes(4, "big") + body.encode(), bound)
        if found is None:
            if not is_coded(body):
                return body, crc
            found = join([], crc.to_bytes(4, "big") + body.encode())
        return found, zlib.crc32(found.encode())

    def decode_body(self, body: str, crc: int, bound: Bound, *, plain: bool = False) -> tuple[str, int]:
        if not is_coded(body):
            return self.decode(body, bound, plain=plain), crc
        data = self._decode(body, bound)
        try:
            return data[4:].decode(), int.from_bytes(data[:4], "big")
        except UnicodeDecodeError:
            raise PayloadDamaged("it is not text") from None

    def is_current(self, text: str) -> bool:
        """Whether it was written with the keys that are used now."""
        if not is_coded(text):
            return not self._always
        labels = {codec.name: codec.label for _, codec in self._codecs}
        header = text[len(MARK) :].partition(":")[0]
        tags = [tag.partition(".") for tag in header.split("+")] if header else []
        names = {name for name, _, _ in tags}
        return names.issuperset(self._always) and all(labels.get(name) == label for name, _, label in tags)

    def _encode(self, data: bytes, bound: Bound) -> str | None:
        tags: list[str] = []
        for tag, codec in self._codecs:
            found = codec.encode(data, _after(tags, bound))
            if found is not None:
                data = found
                tags.append(tag)
        return join(tags, data) if tags else None

    def _decode(self, text: str, bound: Bound) -> bytes:
        tags, data = split(text)
        for name in self._needed:
            if not any(name == one for one, _ in tags):
                raise PayloadDamaged(f"it did not go through {name}")
        for place in range(len(tags) - 1, -1, -1):
            name, label = tags[place]
            codec = self._by_name.get(name)
            if codec is None:
                raise PayloadSealed(f"it went through codec {name!r}, and here is {', '.join(self._by_name)}: {ADVICE}")
            before = [f"{one}.{its}" if its else one for one, its in tags[:place]]
            data = _decoded(codec, data, label, _after(before, bound))
        return data


def _decoded(codec: PayloadCodec, data: bytes, label: str, bound: Bound) -> bytes:
    try:
        return codec.decode(data, label, bound)
    except PayloadSealed:
        raise
    except Exception as error:
        raise PayloadDamaged(f"codec {codec.name!r} cannot decode it: {type(error).__name__}") from error


def _after(tags: Sequence[str], bound: Bound) -> Bound:
    return Bound(bound.scope, bound.place + b"\0\0" + "+".join(tags).encode())


def _tag(codec: PayloadCodec) -> str:
    if not isinstance(codec, PayloadCodec):
        raise InvalidInput(f"{codec!r} is no payload codec: derive it from batuta.codecs.PayloadCodec")
    if not _NAME.fullmatch(codec.name) or not _LABEL.fullmatch(codec.label):
        raise InvalidInput(f"codec {codec.name!r}: its name or label has characters that it cannot have")
    return f"{codec.name}.{codec.label}" if codec.label else codec.name
