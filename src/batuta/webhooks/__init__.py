"""HTTP to strangers: signed webhooks, a client that calls no private address, and a check of incoming signatures."""

from __future__ import annotations

from batuta.webhooks.addresses import AddressPolicy
from batuta.webhooks.client import HttpLimits, HttpResponse, SafeHttpClient
from batuta.webhooks.endpoints import Endpoint, NewEndpoint
from batuta.webhooks.signatures import new_signing_secret, sign_webhook, verify_webhook
from batuta.webhooks.urls import Target, parse_target

__all__ = [
    "AddressPolicy",
    "Endpoint",
    "HttpLimits",
    "HttpResponse",
    "NewEndpoint",
    "SafeHttpClient",
    "Target",
    "new_signing_secret",
    "parse_target",
    "sign_webhook",
    "verify_webhook",
]
