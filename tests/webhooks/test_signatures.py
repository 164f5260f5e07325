"""Signatures of webhooks, compared with the reference library of Standard Webhooks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from batuta.clock import SECOND, ManualClock, SystemClock
from batuta.errors import InvalidInput, InvalidSignature
from batuta.webhooks import new_signing_secret, sign_webhook, verify_webhook

BODY = '{"type":"key.created","data":{"é":1}}'.encode()


def now() -> int:
    return SystemClock().now() // SECOND


def test_the_reference_library_accepts_our_signatures_and_we_accept_its() -> None:
    secret = new_signing_secret()
    headers = sign_webhook([secret], "msg_1", now(), BODY)
    assert Webhook(secret).verify(BODY, headers)
    theirs = Webhook(secret).sign("msg_2", datetime.now(UTC), BODY.decode())
    headers = {"webhook-id": "msg_2", "Webhook-Timestamp": str(now()), "webhook-signature": theirs}
    assert verify_webhook(headers, BODY, [secret]) == "msg_2"
    with pytest.raises(WebhookVerificationError):
        Webhook(new_signing_secret()).verify(BODY, sign_webhook([secret], "msg_1", now(), BODY))


def test_the_signature_of_the_published_example() -> None:
    headers = sign_webhook(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_a_secret_is_rotated_the_old_and_the_new_one_fit() -> None:
    old, new = new_signing_secret(), new_signing_secret()
    headers = sign_webhook([new, old], "msg_1", now(), BODY)
    for known in ([old], [new], [new_signing_secret(), new]):
        assert verify_webhook(headers, BODY, known) == "msg_1"
    assert Webhook(old).verify(BODY, headers)


def _without(name: str) -> Any:
    return lambda headers: {key: value for key, value in headers.items() if key != name}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without("webhook-id"), "missing"),
        (_without("webhook-timestamp"), "missing"),
        (_without("webhook-signature"), "missing"),
        (lambda headers: headers | {"webhook-id": "msg_2"}, "no signature"),
        (lambda headers: headers | {"webhook-timestamp": "soon"}, "number"),
        (lambda headers: headers | {"webhook-timestamp": "9" * 5000}, "number"),
        (lambda headers: headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}, "no signature"),
        (lambda headers: headers | {"webhook-signature": "v1,"}, "no signature"),
        (lambda headers: headers | {"webhook-signature": headers["webhook-signature"].replace("v1", "v2")}, "no sig"),
        (lambda headers: headers | {"webhook-signature": "é" * 10}, "ASCII"),
        (lambda headers: headers | {"webhook-signature": "v1,\udcff"}, "ASCII"),
        (lambda headers: headers | {"webhook-id": "\udcff"}, "ASCII"),
        (lambda headers: headers | {"webhook-signature": ""}, "ASCII"),
        (lambda headers: headers | {"webhook-signature": None}, "ASCII"),
        (lambda headers: headers | {"webhook-timestamp": now()}, "ASCII"),
        (lambda headers: headers | {"webhook-timestamp": "-1"}, "number"),
        (lambda headers: {name.encode(): value.encode() for name, value in headers.items()}, "missing"),
    ],
)
def test_a_webhook_that_was_changed_is_refused(change: Any, why: str) -> None:
    secret = new_signing_secret()
    with pytest.raises(InvalidSignature, match=why):
        verify_webhook(change(sign_webhook([secret], "msg_1", now(), BODY)), BODY, [secret])


def test_a_part_of_the_body_does_not_pass_for_the_timestamp() -> None:
    """`msg.1.2.rest` is signed for both."""
    secret, stamp = new_signing_secret(), now()
    old = stamp - 10_000
    headers = sign_webhook([secret], "msg", old, f"{stamp}.rest".encode())
    moved = headers | {"webhook-id": f"msg.{old}", "webhook-timestamp": str(stamp)}
    with pytest.raises(InvalidSignature, match="without a dot"):
        verify_webhook(moved, b"rest", [secret])


def test_another_body_or_secret_is_refused_and_neither_is_shown() -> None:
    secret = new_signing_secret()
    headers = sign_webhook([secret], "msg_1", now(), BODY)
    for body, known in ((BODY + b" ", [secret]), (BODY, [new_signing_secret()]), (BODY, [])):
        with pytest.raises(InvalidSignature) as refused:
            verify_webhook(headers, body, known)
        assert secret not in str(refused.value)


def test_a_body_that_is_a_text_is_refused() -> None:
    body: Any = BODY.decode()
    secret = new_signing_secret()
    with pytest.raises(InvalidInput, match="raw bytes"):
        verify_webhook(sign_webhook([secret], "msg_1", now(), BODY), body, [secret])
    with pytest.raises(InvalidInput, match="raw bytes"):
        sign_webhook([secret], "msg_1", now(), body)


@pytest.mark.parametrize("timestamp", [1614265330.5, "1614265330", None, -1])
def test_a_timestamp_that_is_no_number_of_seconds_is_not_signed(timestamp: Any) -> None:
    with pytest.raises(InvalidInput, match="whole number of seconds"):
        sign_webhook([new_signing_secret()], "msg_1", timestamp, BODY)


@pytest.mark.parametrize("tolerance", [10, timedelta(seconds=10)])
def test_the_tolerance_is_seconds_or_a_timedelta(tolerance: float | timedelta) -> None:
    clock, secret = ManualClock(), new_signing_secret()
    headers = sign_webhook([secret], "msg_1", clock.now() // SECOND, BODY)
    clock.jump(9)
    assert verify_webhook(headers, BODY, [secret], tolerance=tolerance, clock=clock) == "msg_1"
    clock.jump(3)
    with pytest.raises(InvalidSignature, match="12 s ago"):
        verify_webhook(headers, BODY, [secret], tolerance=tolerance, clock=clock)
    with pytest.raises(InvalidSignature, match="12 s ago"):
        verify_webhook(headers, BODY, [secret], tolerance=float("nan"), clock=clock)


@pytest.mark.parametrize(("moved", "why"), [(301, "301 s ago"), (-301, "301 s in the future")])
def test_a_webhook_that_is_too_old_or_from_the_future_is_refused(moved: float, why: str) -> None:
    clock = ManualClock()
    secret = new_signing_secret()
    headers = sign_webhook([secret], "msg_1", clock.now() // SECOND, BODY)
    clock.jump(moved)
    with pytest.raises(InvalidSignature, match=why):
        verify_webhook(headers, BODY, [secret], clock=clock)


@pytest.mark.parametrize(
    "secret", [None, b"whsec_", "", "whsec_", "whsec_????", "whsec_" + "QUFB", "whsec_" + "QUFB" * 40]
)
def test_a_secret_that_cannot_be_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(InvalidInput, match="secret must be") as refused:
        sign_webhook([secret], "msg_1", now(), BODY)
    assert len(secret or "") < 12 or secret not in str(refused.value)


@pytest.mark.parametrize("id", ["", "a.b", "é", "a\n"])
def test_an_id_that_would_make_a_signature_ambiguous_is_refused(id: str) -> None:
    with pytest.raises(InvalidInput, match="id of a webhook"):
        sign_webhook([new_signing_secret()], id, now(), BODY)
