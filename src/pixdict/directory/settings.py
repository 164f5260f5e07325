"""What a directory is set to. Each default that no official document gives is marked [?]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cryptography import x509
from msgspec import Struct, field

from pixdict.dict.buckets import Refill
from pixdict.dict.headers import ISPB
from pixdict.dict.policies import CATEGORIES, Limit
from pixdict.dict.signatures import Signer
from pixdict.dict.tls import Tls

SignatureMode = Literal["off", "present", "verify"]


class Participant(Struct, frozen=True, kw_only=True):
    """An institution that may ask."""

    category: str = "A"
    direct: str | None = None
    """Of an indirect participant: the ISPB of the direct one, which may act for it."""
    certificate: x509.Certificate | None = None
    """What its signatures are verified with; the mode `verify` needs it."""

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES or len(self.category) != 1:
            raise ValueError(f"category {self.category!r}: choose one of {', '.join(CATEGORIES)}")
        if self.direct is not None and not ISPB.fullmatch(self.direct):
            raise ValueError(f"direct participant {self.direct!r} is not an ISPB: 8 letters or digits")


EXAMPLES = {"12345678": Participant(), "87654321": Participant()}
"""The institutions of the official samples."""


class DirectorySettings(Struct, frozen=True, kw_only=True):
    """How a directory behaves."""

    participants: Mapping[str, Participant] = field(default_factory=lambda: dict(EXAMPLES))
    """Who may ask, by ISPB. All others are refused."""
    policies: Mapping[str, Limit | Mapping[str, Limit]] = {}
    """Limits that differ from the official table."""
    refill: Refill = Refill.STEPPED
    """[?] All tokens of a period come at its end, or one by one."""
    check_digits: bool = False
    """[?] Refuse a CPF or CNPJ whose check digits are wrong. The official samples have wrong ones."""
    refuse_own_lookups: bool = True
    """Refuse a lookup of a key of the institution that asks."""
    list_user_policies: bool = False
    """[?] Whether `/policies/` lists the buckets of users too."""
    signature: SignatureMode = "off"
    """Of writes: not looked at, must be there, must be right. In the last two modes answers are signed."""
    tls: Tls | None = None
    """With it, clients connect with TLS and show a certificate, whose common name is their ISPB [?]: they ask as that
    participant, or for one that it is the direct participant of."""
    signer: Signer | None = None
    """What answers are signed with; without one the directory makes its own."""
    max_body: int = 1024 * 1024
    """Bytes of a request."""
    body_timeout: float = 10.0
    """Seconds in which a request must have arrived."""

    def __post_init__(self) -> None:
        for ispb in self.participants:
            if not ISPB.fullmatch(ispb):
                raise ValueError(f"participant {ispb!r} is not an ISPB: 8 letters or digits")
