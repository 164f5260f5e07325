"""Structs that hold secrets do not show them when somebody prints or logs them."""

from typing import Any

import pytest

from batuta.server.access.session import SignInBody
from batuta.server.flows.secrets import SecretBody
from batuta.server.jobs import CompleteBody, FailBody, HeartbeatBody
from batuta.webhooks.endpoints import EndpointDoc, Secret, new_view_of

HUSH = "hushhush"
DOC = EndpointDoc(url=f"https://example.com/?key={HUSH}", secrets=[Secret(text=HUSH, created_at=0)], created_at=0)


@pytest.mark.parametrize(
    "holder",
    [
        SignInBody(key=HUSH),
        SecretBody(value=HUSH),
        CompleteBody(token=HUSH),
        FailBody(token=HUSH),
        HeartbeatBody(token=HUSH),
        DOC,
        DOC.secrets[0],
        new_view_of("ep", DOC, 0),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_a_secret_is_not_shown(holder: Any) -> None:
    assert HUSH not in f"{holder} {holder!r} {[holder]}"
