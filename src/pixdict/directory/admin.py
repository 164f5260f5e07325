"""The knobs of a directory as JSON, below `/admin/v1/`: time, faults, balances, payments, participants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct, json, to_builtins

from batuta.clock import as_datetime
from pixdict.dict.policies import Scope
from pixdict.directory.faults import Fault, Faults
from pixdict.directory.requests import Reply, Request
from pixdict.directory.service import Service
from pixdict.directory.settings import Participant

PREFIX = "/admin/v1/"


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Advance(_Strict, frozen=True, kw_only=True):
    """Move the time forward."""

    seconds: float


class Payment(_Strict, frozen=True, kw_only=True):
    """A payment order was sent with the lookups of this id."""

    end_to_end_id: str
    payer_id: str


class Balance(_Strict, frozen=True, kw_only=True):
    """Set a balance."""

    policy: str
    participant: str
    tokens: int
    payer_id: str = ""


class Institution(_Strict, frozen=True, kw_only=True):
    """Add or change a participant."""

    category: str = "A"
    direct: str | None = None


class Admin:
    """Answers requests of people and tests. Bodies and answers are JSON."""

    def __init__(self, service: Service, faults: Faults) -> None:
        self._service = service
        self._faults = faults
        self._routes: dict[tuple[str, str], Callable[[bytes, str], Any]] = {
            ("GET", "state"): lambda *_: self.state(),
            ("POST", "time"): self._advance,
            ("GET", "faults"): lambda *_: to_builtins(self._faults.all()),
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): self._clear_faults,
            ("POST", "payments"): self._payment,
            ("PUT", "balances"): self._balance,
            ("PUT", "participants"): self._participant,
        }

    def handle(self, request: Request) -> Reply:
        """One request. A POST or PUT must say that it sends JSON, so that no page of a browser can make it."""
        name, _, rest = request.path.removeprefix(PREFIX).partition("/")
        handler = self._routes.get((request.method, name)) if request.path.startswith(PREFIX) else None
        if handler is None:
            return _json(404, {"error": f"there is no {request.method} {request.path[:200]}"})
        kind = (request.header("Content-Type") or "").partition(";")[0].strip().lower()
        if request.method in ("POST", "PUT") and kind != "application/json":
            return _json(415, {"error": "send JSON, with the header Content-Type: application/json"})
        try:
            return _json(200, handler(request.body, unquote(rest)))
        except ValueError as error:  # also of msgspec
            return _json(400, {"error": str(error)})

    def state(self) -> dict[str, Any]:
        """Everything that a panel shows."""
        service = self._service
        now = service.now()
        return {
            "now": as_datetime(now).isoformat(),
            "signature": service.settings.signature,
            "participants": {ispb: self._institution(ispb) for ispb in service.participants},
            "faults": to_builtins(self._faults.all()),
            "counts": service.storage.counts(),
            "requests": to_builtins(list(reversed(service.seen))),
        }

    def _institution(self, ispb: str) -> dict[str, Any]:
        service, participant = self._service, self._service.participants[ispb]
        shared = [rule.name for rule in service.limiter.rules.values() if rule.scope is Scope.PSP]
        return {
            "category": participant.category,
            "direct": participant.direct,
            "balances": {name: service.balance(name, ispb) for name in shared},
        }

    def _advance(self, body: bytes, rest: str) -> Any:
        moved = self._service.advance(json.decode(body, type=Advance).seconds)
        return {"now": as_datetime(moved).isoformat()}

    def _add_fault(self, body: bytes, rest: str) -> Any:
        fault = json.decode(body, type=Fault)
        self._faults.put(fault)
        return to_builtins(fault)

    def _clear_faults(self, body: bytes, rest: str) -> Any:
        self._faults.clear()
        return []

    def _payment(self, body: bytes, rest: str) -> Any:
        payment = json.decode(body, type=Payment)
        return {"credited_lookups": self._service.payment_sent(payment.end_to_end_id, payment.payer_id)}

    def _balance(self, body: bytes, rest: str) -> Any:
        given = json.decode(body, type=Balance)
        self._service.set_balance(given.policy, given.participant, given.tokens, given.payer_id)
        return to_builtins(given)

    def _participant(self, body: bytes, rest: str) -> Any:
        given = json.decode(body, type=Institution)
        known = self._service.participants.get(rest)
        certificate = known.certificate if known else None
        self._service.set_participant(rest, Participant(**msgspec.structs.asdict(given), certificate=certificate))
        return to_builtins(given)


def _json(status: int, value: Any) -> Reply:
    return Reply(status=status, body=json.encode(value), content_type="application/json")
