"""Payloads through a chain of codecs, bound to the place where they lie."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

from msgspec import json

from batuta.codecs.base import Bound, PayloadCodec
from batuta.errors import BadData, InvalidInput, PayloadDamaged, PayloadSealed
from batuta.journal.codec_envelope import ADVICE, MARK, OLDER_MARK, is_coded, is_old, join, split

Place = tuple[object, ...]
"""The run (or chain, or schedule) that a payload belongs to, and then what tells it from others there."""

_Owner = tuple[object, bytes, bytes]
"""A scope, its owner, and how the places of its payloads begin."""
_MOST_OWNERS = 1_000

_encode = json.Encoder().encode
_NAME = re.compile(r"[A-Za-z0-9]{1,20}")
_LABEL = re.compile(r"[A-Za-z0-9._-]{0,60}")
_VERSION = 3
"""Of what payloads are bound to. It is bound with them: an old one does not pass as a new one."""
_BEGINNING, _END = f"[{_VERSION},".encode(), b"\0\0"
_NOT_ENCRYPTED = "it is not encrypted: add the word 'plain' to the keys to allow that"
_OLD = (
    "it was written by an earlier version, which bound it to less: let the word 'old' stand among the keys, and run "
    "`batuta keys rotate`"
)


class Payloads:
    """The codecs of one store. Encodes in their order and decodes in the order that each payload says."""

    def __init__(self, codecs: Sequence[PayloadCodec], namespace: str) -> None:
        self._codecs, self._namespace = [(_tag(codec), codec) for codec in codecs], namespace
        self._owners: dict[int, _Owner] = {}
        """By the identities of their scopes, which they hold: nothing else has them meanwhile."""
        self._by_name = {codec.name: codec for codec in codecs}
        if len(self._by_name) < len(codecs):
            raise InvalidInput("two codecs have the same name: give only one of each kind")
        _refuse_unpacking_first(codecs)
        self._ranks = {codec.name: rank for rank, codec in enumerate(codecs)}
        self.always = [codec.name for codec in codecs if codec.always]
        """Codecs that every payload goes through."""
        self._needed = [codec.name for codec in codecs if codec.always and not codec.plain]
        self.strict = bool(self._needed)
        """Nothing is believed that did not go through all codecs which every payload goes through."""
        self._reads_old = all(codec.old for codec in codecs if codec.always)
        self.mark = "+".join(codec.mark for codec in codecs)
        """Names the payloads that can be read here: part of the fingerprints of this store's workers."""

    def bound(self, scope: object, *place: object, namespace: str | None = None) -> Bound:
        """A payload's place: the run (or schedule) that it belongs to, and what tells it from others there.
        `namespace`: of a row that may be of another one than the store's.

        As JSON: two that are not the same never look the same."""
        _, owner, beginning = self._owner(scope) if namespace is None else _owner_of(namespace, scope)
        return Bound(owner, beginning + _encode(place)[1:] + _END)

    def _owner(self, scope: object) -> _Owner:
        """Runs have many payloads."""
        found = self._owners.get(id(scope))
        if found is None:
            if len(self._owners) >= _MOST_OWNERS:
                self._owners.clear()
            found = self._owners[id(scope)] = _owner_of(self._namespace, scope)
        return found

    def keyed(self, text: str) -> str:
        """A keyed hash of the text. Without keys: the text."""
        for _, codec in self._codecs:
            if (found := codec.keyed(text)) is not None:
                return found
        return text

    def is_keyed(self, text: str, found: str) -> bool:
        """Whether that is a keyed hash of the text, by the first key or one that was the first before."""
        return found == self.keyed(text) or any(found in codec.keyed_before(text) for _, codec in self._codecs)

    def encode(self, text: str, bound: Bound) -> str:
        """The text to write; unchanged if no codec changes it."""
        return self._encode(text.encode(), bound) or (text if not is_coded(text) else join([], text.encode()))

    def decode(self, text: str, bound: Bound, *old: Place, plain: bool = False) -> str:
        """The original text. Raises PayloadSealed.

        `old`: places that earlier versions may have bound it to. `plain`: the store may have written it itself.
        """
        if not is_coded(text):
            if self._needed and not plain:
                raise PayloadDamaged(_NOT_ENCRYPTED)
            return text
        try:
            return self._decode(text, bound, old).decode()
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

    def decode_body(self, body: str, crc: int, bound: Bound, *old: Place, plain: bool = False) -> tuple[str, int]:
        if not is_coded(body):
            return self.decode(body, bound, plain=plain), crc
        data = self._decode(body, bound, old)
        try:
            return data[4:].decode(), int.from_bytes(data[:4], "big")
        except UnicodeDecodeError:
            raise PayloadDamaged("it is not text") from None

    def is_current(self, text: str) -> bool:
        """Whether it was written with the keys that are used now, and bound as it is now."""
        if not is_coded(text):
            return not self.always
        if is_old(text) and self.always:
            return False
        labels = {codec.name: codec.label for _, codec in self._codecs}
        header = text[len(MARK) :].partition(":")[0]
        tags = [tag.partition(".") for tag in header.split("+")] if header else []
        names = {name for name, _, _ in tags}
        return names.issuperset(self.always) and all(labels.get(name) == label for name, _, label in tags)

    def _encode(self, data: bytes, bound: Bound) -> str | None:
        tags: list[str] = []
        for tag, codec in self._codecs:
            found = _encoded(codec, data, _after(tags, bound))
            if found is not None:
                data = found
                tags.append(tag)
        return join(tags, data) if tags else None

    def _decode(self, text: str, bound: Bound, old: Sequence[Place]) -> bytes:
        tags, data = split(text)
        for name in self._needed:
            if not any(name == one for one, _ in tags):
                raise PayloadDamaged(f"it did not go through {name}")
        for name, _ in tags:
            if name not in self._by_name:
                ours = ", ".join(self._by_name)
                raise PayloadSealed(f"it went through codec {name!r}, and this process has {ours}: {ADVICE}")
        if len(tags) > len(self._by_name):
            raise PayloadDamaged("it went through more codecs than this process has")
        if is_old(text):
            if not self._reads_old:
                raise PayloadSealed(_OLD)
            places = [self.bound(*place) for place in old]
            if text.startswith(OLDER_MARK):
                return self._decode_old(tags, data, map(by_first_version, places))
            return self._decode_old(tags, data, map(by_second_version, [bound, *places]))
        if len(tags) > 1:
            self._check_order(tags)
        return self._through(tags, data, bound)

    def _decode_old(self, tags: Sequence[tuple[str, str]], data: bytes, places: Iterable[Bound]) -> bytes:
        damaged = PayloadDamaged(_OLD)
        for bound in places:
            try:
                return self._through(tags, data, bound)
            except PayloadDamaged as error:
                damaged = error
        raise damaged

    def _through(self, tags: Sequence[tuple[str, str]], data: bytes, bound: Bound) -> bytes:
        if len(tags) == 1:
            [(name, label)] = tags
            return _decoded(self._by_name[name], data, label, _after((), bound))
        for place in range(len(tags) - 1, -1, -1):
            name, label = tags[place]
            data = _decoded(self._by_name[name], data, label, _after([_joined(*tag) for tag in tags[:place]], bound))
        return data

    def _check_order(self, tags: Sequence[tuple[str, str]]) -> None:
        """A text in the database can name codecs in any order.

        A codec that comes before one with `always` here only gets that one's output: otherwise it would decompress
        anything that an attacker has put there.
        """
        for place, (name, _) in enumerate(tags):
            if any(self._by_name[one].always and self._ranks[one] > self._ranks[name] for one, _ in tags[:place]):
                raise PayloadDamaged(
                    f"its codecs are in another order: {name!r} was the last one, and is the first here"
                )


def by_second_version(bound: Bound) -> Bound:
    """As the second version wrote it."""
    return Bound(bound.scope, b"[2," + bound.place[len(_BEGINNING) :])


def by_first_version(bound: Bound) -> Bound:
    """As the first version wrote it, without a comma where nothing follows the scope."""
    place = b"[" + bound.place[len(_BEGINNING) :]
    return Bound(bound.scope, place.replace(b",]" + _END, b"]" + _END))


def _owner_of(namespace: str, scope: object) -> _Owner:
    owner = _encode((namespace, scope))
    return scope, owner, _BEGINNING + owner[1:-1] + b","


def _refuse_unpacking_first(codecs: Sequence[PayloadCodec]) -> None:
    """What unpacks must be given nothing that was not checked before."""
    for place, codec in enumerate(codecs):
        for earlier in codecs[:place]:
            if codec.unpacks and earlier.always:
                raise InvalidInput(f"codec {codec.name!r} comes after {earlier.name!r}: put it before")


def _encoded(codec: PayloadCodec, data: bytes, bound: Bound) -> bytes | None:
    try:
        return codec.encode(data, bound)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadData(f"codec {codec.name!r} cannot encode a payload: {type(error).__name__}") from error


def _decoded(codec: PayloadCodec, data: bytes, label: str, bound: Bound) -> bytes:
    try:
        return codec.decode(data, label, bound)
    except (PayloadSealed, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PayloadDamaged(f"codec {codec.name!r} cannot decode it: {type(error).__name__}") from error


def _after(tags: Sequence[str], bound: Bound) -> Bound:
    return Bound(bound.scope, bound.place + "+".join(tags).encode()) if tags else bound


def _joined(name: str, label: str) -> str:
    return f"{name}.{label}" if label else name


def _tag(codec: PayloadCodec) -> str:
    if not isinstance(codec, PayloadCodec):
        raise InvalidInput(f"{codec!r} is not a payload codec: derive it from batuta.codecs.PayloadCodec")
    if not _NAME.fullmatch(codec.name) or not _LABEL.fullmatch(codec.label):
        raise InvalidInput(f"codec {codec.name!r}: its name or label has invalid characters")
    return _joined(codec.name, codec.label)
