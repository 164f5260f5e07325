"""Endpoints for webhooks: what the store keeps of one, what people see of it, and the rules of its changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, convert, json

from batuta.clock import SECOND, as_datetime
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.journal.codec_envelope import decode_stored
from batuta.names import check_reason, quoted
from batuta.webhooks.urls import parse_target

LONGEST_OVERLAP: Final = 30 * 86_400.0
"""Seconds for which an old secret may still sign."""
MOST_SECRETS: Final = 10
_MOST_TYPES = 100
_LONGEST_WORDS = 500
_TYPE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_PATTERN = re.compile(r"(\*|[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*(\.\*)?)")
_MESSAGE = re.compile(r"[A-Za-z0-9_:-]{1,150}")


class Secret(Struct, kw_only=True):
    """Signs webhooks."""

    text: str
    created_at: int
    until: int | None = None
    """Microseconds: it signs no more after that."""

    def __repr__(self) -> str:
        return "<a secret>"


class EndpointDoc(Struct, kw_only=True, omit_defaults=True):
    """An endpoint, as the store keeps it. Times are microseconds."""

    url: str
    secrets: list[Secret]
    created_at: int
    types: list[str] = []
    description: str = ""
    enabled: bool = True
    reason: str = ""
    disable_after: float | None = None
    failing_since: int | None = None

    def __repr__(self) -> str:
        return f"<webhook endpoint at {shown_url(self.url)}>"

    def encode(self) -> str:
        return json.encode(self).decode()

    def signing(self, now: int) -> list[Secret]:
        """The secrets that sign now, the newest first."""
        return [one for one in self.secrets if one.until is None or one.until > now]

    def takes(self, event: str) -> bool:
        """Whether it is to be told of events of that type."""
        return not self.types or any(_covers(pattern, event) for pattern in self.types)

    def rotate(self, secret: str, overlap: float, now: int) -> None:
        """Sign with a new secret; the ones before sign with it for so many seconds more."""
        ends = now + round(overlap * SECOND)
        for one in self.secrets:
            one.until = ends if one.until is None else min(one.until, ends)
        self.secrets = [Secret(text=secret, created_at=now), *self.signing(now)][:MOST_SECRETS]

    def noted(self, *, failed: bool, gone: bool, now: int) -> bool:
        """Note how an attempt went. Whether that changes anything: few do."""
        if not failed:
            changed, self.failing_since = self.failing_since is not None, None
            return changed
        if gone and self.enabled:
            return self._disable("the receiver answered that it is gone (status 410)")
        if self.failing_since is None:
            self.failing_since = now
            return True
        lasted = (now - self.failing_since) / SECOND
        if self.enabled and self.disable_after is not None and lasted >= self.disable_after:
            return self._disable(f"every attempt of the last {lasted:,.0f} s failed")
        return False

    def _disable(self, why: str) -> bool:
        self.enabled, self.reason = False, why
        return True


class SecretView(Struct, kw_only=True):
    """A secret, without the secret itself."""

    created_at: datetime
    signs_until: datetime | None
    """None: until it is rotated."""


class Endpoint(Struct, kw_only=True):
    """Where webhooks are sent to."""

    id: str
    url: str
    """Without its query, which may hold secrets."""
    description: str
    types: list[str]
    """Types of the events it gets; empty: all."""
    enabled: bool
    reason: str
    """Why it is disabled."""
    created_at: datetime
    disable_after: float | None
    """Seconds of failures alone after which it is disabled by itself; None: never."""
    failing_since: datetime | None
    secrets: list[SecretView]


class NewEndpoint(Endpoint, kw_only=True):
    """An endpoint with a secret that was just made."""

    secret: str
    """It is shown once. Give it to the receiver."""

    def __repr__(self) -> str:
        return f"<webhook endpoint {self.id} with a new secret>"


def decode_endpoint(id: str, text: str) -> EndpointDoc:
    """Raises PayloadSealed when this process cannot read it."""
    return decode_stored(text, f"webhook endpoint {id!r}", EndpointDoc)


def fields_of(id: str, doc: EndpointDoc, now: int) -> dict[str, Any]:
    """The endpoint as people see it."""
    return {
        "id": id,
        "url": shown_url(doc.url),
        "description": doc.description,
        "types": doc.types,
        "enabled": doc.enabled,
        "reason": doc.reason,
        "created_at": as_datetime(doc.created_at),
        "disable_after": doc.disable_after,
        "failing_since": None if doc.failing_since is None else as_datetime(doc.failing_since),
        "secrets": [
            SecretView(
                created_at=as_datetime(one.created_at),
                signs_until=None if one.until is None else as_datetime(one.until),
            )
            for one in doc.signing(now)
        ],
    }


def view_of(id: str, doc: EndpointDoc, now: int) -> Endpoint:
    return Endpoint(**fields_of(id, doc, now))


def new_view_of(id: str, doc: EndpointDoc, now: int) -> NewEndpoint:
    """With the newest secret."""
    return convert(fields_of(id, doc, now) | {"secret": doc.secrets[0].text}, NewEndpoint)


def shown_url(url: str) -> str:
    """Without what stands in its query."""
    address, question, _ = url.partition("?")
    return f"{address}?..." if question else address


# -- what callers give


def check_url(url: object) -> str:
    """Raises InvalidURL."""
    if not isinstance(url, str):
        raise InvalidInput(f"url={quoted(url)} must be a text, such as 'https://example.com/hooks'")
    parse_target(url)
    return url


def check_types(types: object) -> list[str]:
    """Raises InvalidInput."""
    if isinstance(types, str) or not isinstance(types, Iterable):
        raise InvalidInput(f"types={quoted(types)} must be a list of event types, such as ['order.paid', 'claim.*']")
    found = list(dict.fromkeys(types))
    if len(found) > _MOST_TYPES:
        raise InvalidInput(f"{len(found):,} event types are too many: an endpoint has at most {_MOST_TYPES}")
    for one in found:
        if not isinstance(one, str) or len(one) > _LONGEST_WORDS or _PATTERN.fullmatch(one) is None:
            raise InvalidInput(
                f"event type {quoted(one)} must be words of letters, digits and _ with dots between them; `claim.*` "
                f"stands for all that begin with `claim.`"
            )
    return found


def check_type(given: object) -> str:
    """The type of one event. Raises InvalidInput."""
    if not isinstance(given, str) or len(given) > _LONGEST_WORDS or _TYPE.fullmatch(given) is None:
        raise InvalidInput(f"event type {quoted(given)} must be words of letters, digits and _ with dots between them")
    return given


def check_message_id(id: object) -> str:
    """Raises InvalidInput."""
    if not isinstance(id, str) or _MESSAGE.fullmatch(id) is None:
        raise InvalidInput(f"the id of a webhook must be 1 to 150 letters, digits, _, : or -, not {quoted(id)}")
    return id


def check_description(text: object) -> str:
    """Raises InvalidInput."""
    found = check_reason(text, "description")
    if len(found) > _LONGEST_WORDS:
        raise InvalidInput(f"the description of an endpoint has at most {_LONGEST_WORDS} characters")
    return found


def check_disable_after(given: Duration | None) -> float | None:
    """Raises InvalidInput."""
    return None if given is None else check_period("disable_after", given, 366 * 86_400.0, least=1.0)


def check_period(name: str, given: object, most: float, *, least: float = 0.0) -> float:
    """Seconds. Raises InvalidInput."""
    seconds: object = in_seconds(given)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= most:
        raise InvalidInput(f"{name}={quoted(given)} must be from {least:g} to {most:,.0f} seconds, or a timedelta")
    return float(seconds)


def _covers(pattern: str, event: str) -> bool:
    if pattern.endswith("*"):
        return event.startswith(pattern[:-1])
    return pattern == event
