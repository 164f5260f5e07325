"""One request from its bytes to its answer: who asks, may they, what is asked, what it costs. No HTTP here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct, json
from msgspec.structs import replace

from batuta.clock import Clock, SystemClock, as_datetime
from batuta.ids import new_trace_id
from pixdict.dict import buckets, headers, messages, signatures, xml
from pixdict.dict.keys import key_type_of, normalised_key
from pixdict.dict.operations import OPERATIONS, Operation, antiscan_policies, list_claims_policy
from pixdict.dict.policies import Scope, policies
from pixdict.dict.problems import DirectoryRefused
from pixdict.directory import claims, entries, query, reconciliation, statistics
from pixdict.directory.context import Context
from pixdict.directory.limits import Limiter, Touched
from pixdict.directory.requests import Reply, Request, Route, route, uuid_of_path
from pixdict.directory.settings import DirectorySettings, Participant
from pixdict.directory.storage import Lookup, Storage

_SECOND = 1_000_000
_LAST_TIME = 200 * 365 * 86_400 * _SECOND
"""Near the year 2170: dates that are computed from it can still be written."""
_COMPANY_CACHE = "private, max-age=180"
"""Lookups of companies may be kept for three minutes, all others not at all."""
_EXISTENCE_CACHE = "private, max-age=86400"
KEPT_REQUESTS = 100


class Seen(Struct, frozen=True):
    """A request that was answered, for people who watch."""

    at: str
    operation: str
    participant: str
    status: int
    problem: str


class Service:
    """A directory without its HTTP server. `clock` is where its time comes from; `advance` moves it."""

    def __init__(self, settings: DirectorySettings, storage: Storage, clock: Clock | None = None) -> None:
        self.settings = settings
        self.storage = storage
        self._clock = clock or SystemClock()
        self._shift = int(storage.fact("clock_shift", "0"))
        kept = json.decode(storage.fact("participants", "{}"), type=dict[str, dict[str, str | None]])
        self.participants: dict[str, Participant] = dict(settings.participants)
        for ispb, fields in kept.items():
            self._set_fields(ispb, fields)
        self.limiter = Limiter(storage, policies(settings.policies), settings.refill)
        self.seen: deque[Seen] = deque(maxlen=KEPT_REQUESTS)
        signer = settings.signer
        if signer is None and settings.signature != "off":
            signer = self._own_signer()
        self.signer = signer

    def _own_signer(self) -> signatures.Signer:
        """The same one after a restart: clients know its certificate."""
        key, certificate = self.storage.fact("signer_key", ""), self.storage.fact("signer_certificate", "")
        if key:
            return signatures.Signer.of_pem(key.encode(), certificate.encode())
        made = signatures.self_signed("directory", as_datetime(self.now()))
        for name, pem in zip(("signer_key", "signer_certificate"), made.pem(), strict=True):
            self.storage.put_fact(name, pem.decode())
        return made

    # Time

    def now(self) -> int:
        """The directory's time: microseconds, cut to milliseconds."""
        return (self._clock.now() + self._shift) // 1000 * 1000

    def advance(self, seconds: float) -> int:
        """Move the directory's time forward, also for the time after a restart. Returns the new time."""
        if not 0 <= seconds <= 400 * 86_400:
            raise ValueError(f"seconds={seconds}: time goes forward, by at most 400 days at once")
        if self.now() + seconds * _SECOND > _LAST_TIME:
            raise ValueError(f"seconds={seconds}: the directory's time ends near the year 2170; begin a new one")
        self._shift += round(seconds * _SECOND)
        self.storage.put_fact("clock_shift", str(self._shift))
        return self.now()

    # Administration

    def set_participant(self, ispb: str, participant: Participant) -> None:
        """Add or change an institution, also for the time after a restart; its certificate is not kept."""
        if not headers.ISPB.fullmatch(ispb):
            raise ValueError(f"{ispb!r} is not an ISPB: 8 letters or digits")
        kept = json.decode(self.storage.fact("participants", "{}"))
        kept[ispb] = {"category": participant.category, "direct": participant.direct}
        self.storage.put_fact("participants", json.encode(kept).decode())
        self.participants[ispb] = participant

    def _set_fields(self, ispb: str, fields: Mapping[str, str | None]) -> None:
        known = self.participants.get(ispb, Participant())
        category = fields.get("category") or known.category
        self.participants[ispb] = replace(known, category=category, direct=fields.get("direct"))

    def bucket(self, policy: str, participant: str, payer: str = "") -> Touched:
        """A bucket by its names. Raises ValueError for unknown ones."""
        if policy not in self.limiter.rules:
            raise ValueError(f"unknown policy {policy!r}: choose one of {', '.join(self.limiter.rules)}")
        if participant not in self.participants:
            raise ValueError(f"unknown participant {participant!r}: choose one of {', '.join(self.participants)}")
        if self.limiter.rules[policy].scope is Scope.USER and not headers.PAYER.fullmatch(payer):
            raise ValueError(f"policy {policy} is of a user: payer {payer!r} must have 11 or 14 digits")
        return self.limiter.touched(policy, participant, self.participants[participant].category, payer)

    def set_balance(self, policy: str, participant: str, tokens: int, payer: str = "") -> None:
        """Set a balance by hand. Raises ValueError."""
        if not -(10**9) <= tokens <= 10**9:
            raise ValueError(f"tokens={tokens}: give a number between -10^9 and 10^9")
        bucket = self.bucket(policy, participant, payer)
        with self.storage.transaction():
            self.limiter.set(bucket, tokens, self.now())

    def balance(self, policy: str, participant: str, payer: str = "") -> int:
        """The tokens of a bucket now. Raises ValueError."""
        return self.limiter.balance(self.bucket(policy, participant, payer), self.now())

    def payment_sent(self, end_to_end_id: str, payer: str) -> int:
        """A payment order was sent: its lookups are credited, each once. Returns how many were."""
        with self.storage.transaction():
            credited = self.storage.credit_lookups(end_to_end_id, payer)
            for lookup in credited:
                user, participant = buckets.payment_credit(payer)
                own = self.bucket(lookup.policy, lookup.participant, payer)
                self.limiter.change(own, user, self.now())
                everyone = self.bucket(antiscan_policies("")[1], lookup.participant)
                self.limiter.change(everyone, participant, self.now())
        return len(credited)

    # Requests

    def handle(self, request: Request, *, refuse: DirectoryRefused | None = None) -> Reply:
        """Carry out a request: what is answered is stored. `refuse` is a fault: nothing is done, but it costs."""
        now, correlation_id = self.now(), new_trace_id()
        found = route(request.method, request.path)
        requester = request.header(headers.REQUESTING_PARTICIPANT) or ""
        headers_of_answer: dict[str, str] = {}
        answer: Struct
        problem = ""
        try:
            if found is None:
                raise DirectoryRefused("NotFound", f"there is no {request.method} {request.path[:200]}")
            call = _Call(self, request, found, now, correlation_id, refuse)
            with self.storage.transaction():
                requester, result = call.run()
            if isinstance(result, DirectoryRefused):
                raise result
            answer, status = result, found.operation.ok
            headers_of_answer = _cache_headers(found.operation, answer)
        except DirectoryRefused as refused:
            answer, status, problem = refused.problem(correlation_id), refused.status, refused.name
            if refused.retry_after is not None:
                headers_of_answer["Retry-After"] = str(refused.retry_after)
        name = found.operation.name if found else "unknown"
        self.seen.append(Seen(as_datetime(now).isoformat(), name, requester[:8], status, problem))
        content_type = headers.PROBLEM_XML if problem else headers.XML
        return Reply(status=status, body=self._bytes(answer), content_type=content_type, headers=headers_of_answer)

    def refusal(self, refused: DirectoryRefused) -> Reply:
        """The answer to something that did not come as far as `handle`."""
        body = self._bytes(refused.problem(new_trace_id()))
        return Reply(status=refused.status, body=body, content_type=headers.PROBLEM_XML)

    def _bytes(self, answer: Struct) -> bytes:
        root = xml.to_element(answer)
        return xml.serialised(root if self.signer is None else signatures.sign(root, self.signer))


def _cache_headers(operation: Operation, answer: Struct) -> dict[str, str]:
    if isinstance(answer, messages.GetEntryResponse):
        company = answer.entry.owner.type == "LEGAL_PERSON"
        return {"Cache-Control": _COMPANY_CACHE if company else "no-store"}
    return {"Cache-Control": _EXISTENCE_CACHE if operation.name == "checkKeys" else "no-store"}


class _Call:
    """One request while it is carried out."""

    def __init__(
        self,
        service: Service,
        request: Request,
        found: Route,
        now: int,
        correlation_id: str,
        refuse: DirectoryRefused | None,
    ) -> None:
        self._service, self._request, self._route = service, request, found
        self._operation = found.operation
        self._now, self._correlation_id, self._refuse = now, correlation_id, refuse

    def run(self) -> tuple[str, Struct | DirectoryRefused]:
        """Who asked, and the answer. A refusal comes back as a value: what it costs is kept, what was done is not."""
        try:
            message: Struct | None = self._message()
            broken = None
        except DirectoryRefused as refused:
            message, broken = None, refused
        requester = self._requester(message)
        if requester is None:
            return "", broken or DirectoryRefused(
                "BadRequest", f"the header {headers.REQUESTING_PARTICIPANT} is missing"
            )
        if requester not in self._service.participants:
            return requester, DirectoryRefused("Forbidden", f"{requester[:20]!r} is no participant of the directory")
        peer = self._request.peer
        if peer is not None and peer not in (requester, self._service.participants[requester].direct):
            why = f"the certificate of the connection is that of {peer[:20]!r}, not of {requester}"
            return requester, DirectoryRefused("Forbidden", why)
        try:
            touched = self._touched(requester)
        except DirectoryRefused as refused:  # nothing says which bucket is meant: nothing is charged
            return requester, refused
        limiter = self._service.limiter
        if not limiter.admits(touched, self._now):
            return requester, DirectoryRefused("RateLimited", f"no tokens left for {self._operation.name}")
        try:
            with self._service.storage.undone_by_errors():
                if wrong := self._refuse or broken:
                    raise wrong
                self._check_signature(requester)
                answer: Struct | DirectoryRefused = self._carry_out(requester, message)
            status = self._operation.ok
        except DirectoryRefused as refused:
            answer, status = refused, refused.status
        self._charge(touched, status)
        return requester, answer

    def _message(self) -> Struct | None:
        kind = self._operation.request
        if kind is None:
            return None
        try:
            return xml.from_bytes(kind, self._request.body, strict=True)
        except xml.InvalidXml as error:
            raise DirectoryRefused("BadRequest", f"could not read the request: {error}") from None

    def _requester(self, message: Struct | None) -> str | None:
        """Who asks: the header says it, without it the participant that the request speaks of, or else the certificate
        of the connection [?]."""
        if given := self._request.header(headers.REQUESTING_PARTICIPANT):
            return given
        if self._operation.participant_header:
            return None
        values = self._request.parameters.get("Participant")
        said = values[0] if values else _participant_of(message) or self._request.peer
        return self._unnamed(message) if said is None and message is not None else said

    def _unnamed(self, message: Struct) -> str | None:
        """Without a certificate, nothing says who checks keys or changes an owner; the official API wants no header of
        them. The participant that holds the key asks, or else the first one [?]."""
        changed = message.key if isinstance(message, messages.UpdateEntryRequest) else ""
        stored = self._service.storage.entry(normalised_key(changed))
        return stored.entry.account.participant if stored else next(iter(self._service.participants), None)

    def _touched(self, requester: str) -> list[Touched]:
        operation, service = self._operation, self._service
        if operation.name == "getEntry":
            payer = self._request.header(headers.PAYER_ID) or ""
            if not headers.PAYER.fullmatch(payer):
                raise DirectoryRefused("BadRequest", f"the header {headers.PAYER_ID} must have 11 or 14 digits")
            if not self._request.header(headers.END_TO_END_ID):
                raise DirectoryRefused("BadRequest", f"the header {headers.END_TO_END_ID} is missing")
            user, everyone = antiscan_policies(key_type_of(self._route.value) or "")
            return [service.bucket(user, requester, payer), service.bucket(everyone, requester)]
        policy = operation.policy
        if operation.name == "listClaims":
            flags = [query.flag(self._request.parameters, name) for name in ("IsDonor", "IsClaimer")]
            policy = list_claims_policy(is_donor=flags[0], is_claimer=flags[1])
        return [service.bucket(policy, requester)]

    def _charge(self, touched: list[Touched], status: int) -> None:
        costs = buckets.lookup_cost(status) if len(touched) == 2 else (buckets.cost(status),)
        for bucket, cost in zip(touched, costs, strict=True):
            self._service.limiter.change(bucket, -cost, self._now)

    def _check_signature(self, requester: str) -> None:
        mode = self._service.settings.signature
        if mode == "off" or not self._operation.signed:
            return
        root = xml.parse(self._request.body)
        if mode == "present":
            if not signatures.find(root):
                raise DirectoryRefused("RequestSignatureInvalid", "the signature is missing")
            return
        certificate = self._service.participants[requester].certificate
        if certificate is None:
            raise DirectoryRefused("RequestSignatureInvalid", f"{requester} has no certificate here")
        try:
            signatures.verify(root, certificate, as_datetime(self._now))
        except signatures.InvalidSignature as error:
            raise DirectoryRefused("RequestSignatureInvalid", str(error)) from None

    def _carry_out(self, requester: str, message: Struct | None) -> Struct:
        service = self._service
        context = Context(
            service.storage, service.settings, service.participants, requester, self._now, self._correlation_id
        )
        return _HANDLERS[self._operation.name](_Asked(self, context, message, self._route.value))

    def lookup(self, context: Context, key: str) -> messages.GetEntryResponse:
        """A lookup that a payment may follow."""
        parameters = self._request.parameters
        entry = entries.get_entry(context, key)
        with_statistics = query.flag(parameters, "IncludeStatistics") or False
        payer = self._request.header(headers.PAYER_ID) or ""
        policy = antiscan_policies(entry.key_type)[0]
        end_to_end_id = self._request.header(headers.END_TO_END_ID) or ""
        context.storage.add_lookup(end_to_end_id, Lookup(context.requester, payer, policy, entry.key))
        return messages.GetEntryResponse(
            entry=entry,
            owner_statistics=statistics.of_person(context, entry.owner.tax_id_number) if with_statistics else None,
            key_statistics=statistics.of_key(context, entry) if with_statistics else None,
            **context.envelope,
        )

    def list_claims(self, context: Context) -> messages.ListClaimsResponse:
        """Claims of a participant, and maybe of its indirect participants."""
        parameters = self._request.parameters
        participant = query.participant(parameters)
        context.check_acts_for(participant)
        sides = [participant]
        if query.flag(parameters, "IncludeIndirectParticipants"):
            sides += context.indirect_participants()
        page = query.page(parameters, "ModifiedAfter", "ModifiedBefore", limit=20)
        donor, claimer = query.flag(parameters, "IsDonor"), query.flag(parameters, "IsClaimer")
        both = (donor or False) is (claimer or False)
        found = context.storage.claims(
            donors=sides if donor or both else [],
            claimers=sides if claimer or both else [],
            statuses=query.statuses(parameters),
            claim_type=query.claim_type(parameters),
            after=page.after,
            before=page.before,
            limit=page.limit + 1,
        )
        return messages.ListClaimsResponse(
            has_more_elements=len(found) > page.limit, claims=found[: page.limit], **context.envelope
        )

    def list_events(self, context: Context) -> messages.ListCidSetEventsResponse:
        """Changes of the set of identifiers."""
        parameters = self._request.parameters
        page = query.page(parameters, "StartTime", "EndTime", limit=100)
        key_type = query.one(parameters, "KeyType") or ""
        return reconciliation.list_cid_set_events(context, query.participant(parameters), key_type, page)

    def policy_state(self, context: Context, name: str) -> messages.Policy:
        """One bucket of who asks, before this request is charged [?]."""
        category = context.participants[context.requester].category
        bucket = self._service.limiter.touched(name, context.requester, category)
        return messages.Policy(
            available_tokens=self._service.limiter.balance(bucket, self._now),
            capacity=bucket.limit.capacity,
            refill_tokens=bucket.limit.refill,
            refill_period_sec=bucket.limit.period,
            name=name,
        )

    def list_policies(self, context: Context) -> messages.ListPoliciesResponse:
        """The buckets of who asks."""
        rules = self._service.limiter.rules.values()
        with_users = context.settings.list_user_policies
        return messages.ListPoliciesResponse(
            category=context.participants[context.requester].category,
            policies=[self.policy_state(context, rule.name) for rule in rules if with_users or rule.scope is Scope.PSP],
            **context.envelope,
        )

    def get_policy(self, context: Context, name: str) -> messages.GetPolicyResponse:
        """One bucket of who asks."""
        rule = self._service.limiter.rules.get(name)
        if rule is None or rule.scope is Scope.USER:
            raise DirectoryRefused("NotFound", f"there is no policy {name[:100]!r} of participants")
        category = context.participants[context.requester].category
        return messages.GetPolicyResponse(
            category=category, policy=self.policy_state(context, name), **context.envelope
        )


class _Asked(Struct, frozen=True):
    """What a handler gets."""

    call: _Call
    context: Context
    message: Any
    value: str


def _participant_of(message: Struct | None) -> str | None:
    match message:
        case messages.CreateEntryRequest():
            return message.entry.account.participant
        case messages.UpdateEntryRequest():
            return message.account.participant if message.account else None
        case messages.CreateClaimRequest():
            return message.claim.claimer_account.participant
        case messages.CreateSyncVerificationRequest():
            return message.sync_verification.participant
        case _:
            return cast("str | None", getattr(message, "participant", None))


_HANDLERS: dict[str, Callable[[_Asked], Struct]] = {
    "createEntry": lambda asked: entries.create_entry(asked.context, asked.message),
    "getEntry": lambda asked: asked.call.lookup(asked.context, asked.value),
    "updateEntry": lambda asked: entries.update_entry(asked.context, asked.value, asked.message),
    "deleteEntry": lambda asked: entries.delete_entry(asked.context, asked.value, asked.message),
    "getEntryStatistics": lambda asked: statistics.get_entry_statistics(asked.context, asked.value),
    "checkKeys": lambda asked: entries.check_keys(asked.context, asked.message),
    "createClaim": lambda asked: claims.create_claim(asked.context, asked.message),
    "listClaims": lambda asked: asked.call.list_claims(asked.context),
    "getClaim": lambda asked: claims.get_claim(asked.context, uuid_of_path(asked.value)),
    "acknowledgeClaim": lambda asked: claims.acknowledge_claim(asked.context, uuid_of_path(asked.value), asked.message),
    "confirmClaim": lambda asked: claims.confirm_claim(asked.context, uuid_of_path(asked.value), asked.message),
    "cancelClaim": lambda asked: claims.cancel_claim(asked.context, uuid_of_path(asked.value), asked.message),
    "completeClaim": lambda asked: claims.complete_claim(asked.context, uuid_of_path(asked.value), asked.message),
    "createSyncVerification": lambda asked: reconciliation.create_sync_verification(asked.context, asked.message),
    "listCidSetEvents": lambda asked: asked.call.list_events(asked.context),
    "getEntryByCid": lambda asked: reconciliation.get_entry_by_cid(asked.context, asked.value),
    "getPersonStatistics": lambda asked: statistics.get_person_statistics(asked.context, asked.value),
    "listPolicies": lambda asked: asked.call.list_policies(asked.context),
    "getPolicy": lambda asked: asked.call.get_policy(asked.context, asked.value),
}
assert _HANDLERS.keys() == OPERATIONS.keys()  # noqa: S101 - a new operation needs a handler
