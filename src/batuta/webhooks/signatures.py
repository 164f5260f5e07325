"""Signatures of webhooks, as Standard Webhooks has them: headers `webhook-id`, `-timestamp` and `-signature`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

from batuta.clock import SECOND, Clock, SystemClock
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput, InvalidSignature
from batuta.ids import new_secret

PREFIX: Final = "whsec_"
TOLERANCE_S: Final = 300
"""How old a webhook may be, and how far in the future."""
_LEAST_BYTES, _MOST_BYTES = 24, 64


def new_signing_secret() -> str:
    """A secret for an endpoint: `whsec_` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(new_secret(32)).decode()


def sign_webhook(secrets: Iterable[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a webhook. While a secret is rotated there are two, and the receiver may know either.

    `timestamp` is in seconds since 1970. Raises InvalidInput.
    """
    if not id or "." in id or not id.isascii() or not id.isprintable():
        raise InvalidInput(f"the id of a webhook must be printable ASCII without a dot, not {id!r}")
    stamp: Any = timestamp
    if not isinstance(stamp, int) or stamp < 0:
        raise InvalidInput(f"the timestamp of a webhook must be a whole number of seconds, not {timestamp!r}")
    _check_raw(body)
    signatures = " ".join(f"v1,{_signature(_key(secret), id, timestamp, body)}" for secret in secrets)
    if not signatures:
        raise InvalidInput("a webhook is signed with at least one secret")
    return {"webhook-id": id, "webhook-timestamp": str(timestamp), "webhook-signature": signatures}


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[str],
    *,
    tolerance: Duration = TOLERANCE_S,
    clock: Clock | None = None,
) -> str:
    """Check an incoming webhook against the raw bytes of its body, and return its id.

    A sender may repeat a webhook with a new timestamp, Batuta for up to a week: keep the ids for as long, to notice
    repeated ones. Raises InvalidSignature.
    """
    _check_raw(body)
    given: dict[str, Any] = {name.lower(): value for name, value in headers.items()}
    try:
        id, sent, signatures = (given[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise InvalidSignature(f"the header {missing} is missing") from None
    if not all(isinstance(one, str) and one and one.isascii() for one in (id, sent, signatures)) or "." in id:
        # A dot would let a part of the body pass for the timestamp.
        raise InvalidSignature("the headers 'webhook-...' must be ASCII texts, and the id without a dot")
    if not (sent.isdecimal() and len(sent) < 15):
        raise InvalidSignature("the header 'webhook-timestamp' is not a number of seconds")
    age = (clock or SystemClock()).now() / SECOND - int(sent)
    if not abs(age) <= in_seconds(tolerance):
        raise InvalidSignature(f"it was sent {abs(age):.0f} s {'ago' if age > 0 else 'in the future'}")
    expected = [_signature(_key(secret), id, int(sent), body) for secret in secrets]
    for one in signatures.split(" "):
        version, _, signature = one.partition(",")
        if version == "v1" and any(hmac.compare_digest(signature.encode(), known.encode()) for known in expected):
            return str(id)
    raise InvalidSignature("no signature fits the body and a known secret")


def _check_raw(body: Any) -> None:
    if isinstance(body, str):
        raise InvalidInput("the body of a webhook must be its raw bytes: a text may differ from what was signed")


def check_secret(secret: object) -> str:
    """Raises InvalidInput, which does not repeat it."""
    if not isinstance(secret, str):
        raise InvalidInput("secret= must be a text: `batuta.webhooks.new_signing_secret()` makes one")
    _key(secret)
    return secret


def _signature(key: bytes, id: str, timestamp: int, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError, AttributeError, TypeError):  # the last two: not a text
        key = b""
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise InvalidInput(
            f"a webhook's secret must be `{PREFIX}` and {_LEAST_BYTES} to {_MOST_BYTES} bytes in base64: "
            f"`new_signing_secret()` makes one"
        )
    return key
