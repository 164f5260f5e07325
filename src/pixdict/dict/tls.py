"""Connections on which both sides show a certificate (mutual TLS)."""

from __future__ import annotations

import ssl
from typing import Any

from msgspec import Struct


class Tls(Struct, frozen=True, kw_only=True):
    """Files in PEM."""

    key: str
    certificate: str
    """What this side shows."""
    trusted: str
    """Certificates, or authorities of certificates, that the other side may show. No others are trusted."""

    def client_context(self) -> ssl.SSLContext:
        """For one that connects: the other side's certificate must name its host. Raises OSError."""
        context = ssl.create_default_context(cafile=self.trusted)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def server_options(self) -> dict[str, Any]:
        """For `uvicorn.Config`: without a certificate no caller is served."""
        return {
            "ssl_keyfile": self.key,
            "ssl_certfile": self.certificate,
            "ssl_ca_certs": self.trusted,
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }
