"""The gRPC services: what comes in is checked here, before it costs a token of the directory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

from msgspec import Struct

from pixdict.bridge.calls import Calls
from pixdict.bridge.directory import DirectoryRequest
from pixdict.bridge.errors import PROBLEM, Code, failure_of
from pixdict.bridge.messages import moment, stamp, to_message, to_struct
from pixdict.bridge.settings import BridgeSettings
from pixdict.dict import messages
from pixdict.dict.claims import (
    CLAIM_REASONS,
    CONFIRM_REASONS,
    LISTED_STATUSES,
    Claim,
    ClaimType,
    claim_violations,
    is_of_same_claimer,
)
from pixdict.dict.entries import (
    CREATE_REASONS,
    DELETE_REASONS,
    UPDATE_REASONS,
    UPDATE_REASONS_EVP,
    Account,
    account_violations,
    entry_violations,
    person_violations,
)
from pixdict.dict.headers import END_TO_END_ID, PAYER, PAYER_ID
from pixdict.dict.keys import KeyType, key_type_of
from pixdict.dict.operations import OPERATIONS
from pixdict.dict.policies import OFFICIAL
from pixdict.dict.problems import DirectoryRefused, Violation
from pixdict.dict.xml import spelled_time
from pixdict.errors import InvalidArgument
from pixdict.proto import bridge_pb2 as pb
from pixdict.proto import bridge_pb2_grpc as rpc

log = logging.getLogger("pixdict.bridge")

T = TypeVar("T")
Context = Any
MOST_KEYS, MOST_LISTED = 200, 200
_CLOCKS_APART = timedelta(minutes=1)


def answered(method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Errors become gRPC statuses with a Problem."""

    @functools.wraps(method)
    async def call(self: Any, request: Any, context: Context) -> T:
        try:
            return await method(self, request, context)
        except Exception as error:
            failure = failure_of(error)
            if failure.code is Code.INTERNAL and failure.problem.name == "internal":
                log.exception("%s failed", method.__name__)
            metadata = ((PROBLEM, failure.problem.SerializeToString()),)
            await context.abort(failure.code, failure.text, metadata)
            raise AssertionError("abort() raises") from error

    return call


class _Service:
    def __init__(self, calls: Calls, settings: BridgeSettings) -> None:
        self._calls, self._settings = calls, settings

    def _until(self, context: Context) -> float:
        return self._calls.time_left(context.time_remaining())

    async def _read(self, name: str, context: Context, **parts: Any) -> Any:
        return await self._calls.call(DirectoryRequest(operation=OPERATIONS[name], **parts), self._until(context))

    async def _write(
        self, name: str, request: Any, context: Context, message: Struct, *, recover: Any = None, **path: str
    ) -> Any:
        sent = DirectoryRequest(operation=OPERATIONS[name], path=path, message=message)
        until = self._until(context)
        bound = None if recover is None else functools.partial(recover, until)
        return await self._calls.write(sent, checked_request_id(request.request_id), until, recover=bound)

    def _ours(self, account: Account, where: str) -> None:
        """A Bridge speaks for one participant. Raises DirectoryRefused."""
        if account.participant != self._settings.participant:
            why = f"this Bridge is that of participant {self._settings.participant}"
            refuse("ParticipantInvalid", [Violation(reason=why, value=account.participant, property=where)])


class RateLimits(_Service, rpc.RateLimitsServicer):
    @answered
    async def ListPolicies(self, request: pb.ListPoliciesRequest, context: Context) -> pb.ListPoliciesResponse:
        found = await self._calls.policies(self._until(context))
        policies = [self._policy(one, found.category) for one in found.policies]
        return pb.ListPoliciesResponse(
            policies=policies,
            category=found.category,
            response_time=stamp(found.response_time),
            correlation_id=found.correlation_id,
        )

    @answered
    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context) -> pb.GetPolicyResponse:
        if not request.policy_name.replace("_", "").isalnum():
            raise InvalidArgument(f"policy_name {request.policy_name!r} must be a name such as {next(iter(OFFICIAL))}")
        found = await self._read("getPolicy", context, path={"policy": request.policy_name})
        return to_message(pb.GetPolicyResponse, found, policy=self._policy(found.policy, found.category))

    def _policy(self, policy: messages.Policy, category: str) -> pb.Policy:
        thresholds = self._settings.by_policy.get(policy.name, self._settings.thresholds)
        return pb.Policy(
            policy_name=policy.name,
            category=category,
            capacity=policy.capacity,
            refill_tokens=policy.refill_tokens,
            refill_period_sec=policy.refill_period_sec,
            available_tokens=policy.available_tokens,
            warning_threshold_pct=thresholds.warning,
            critical_threshold_pct=thresholds.critical,
        )


class Entries(_Service, rpc.EntriesServicer):
    @answered
    async def CreateEntry(self, request: pb.CreateEntryRequest, context: Context) -> pb.EntryResponse:
        checked_uuid(request.request_id, random=True)
        message = to_struct(messages.CreateEntryRequest, request)
        checked_reason(request.reason, CREATE_REASONS)
        refuse("EntryInvalid", entry_violations(message.entry))
        self._ours(message.entry.account, "entry.account.participant")
        return to_message(pb.EntryResponse, await self._write("createEntry", request, context, message))

    @answered
    async def GetEntry(self, request: pb.GetEntryRequest, context: Context) -> pb.EntryResponse:
        checked_key(request.key)
        checked_payment(request)
        headers = {PAYER_ID: request.payer_id, END_TO_END_ID: request.end_to_end_id}
        return to_message(
            pb.EntryResponse, await self._read("getEntry", context, path={"Key": request.key}, headers=headers)
        )

    @answered
    async def UpdateEntry(self, request: pb.UpdateEntryRequest, context: Context) -> pb.EntryResponse:
        checked_key(request.key)
        message = to_struct(messages.UpdateEntryRequest, request)
        if message.account is None and message.owner is None:
            raise InvalidArgument("account and owner are both missing: nothing to update")
        evp = key_type_of(request.key) is KeyType.EVP
        checked_reason(request.reason, UPDATE_REASONS_EVP if evp else UPDATE_REASONS)
        found: list[Violation] = []
        if message.account is not None:
            found += account_violations(message.account, "account")
        if message.owner is not None:
            found += person_violations(message.owner, "owner")
        refuse("EntryInvalid", found)
        if message.account is not None:
            self._ours(message.account, "account.participant")
        return to_message(
            pb.EntryResponse, await self._write("updateEntry", request, context, message, Key=request.key)
        )

    @answered
    async def DeleteEntry(self, request: pb.DeleteEntryRequest, context: Context) -> pb.DeleteEntryResponse:
        checked_key(request.key)
        checked_reason(request.reason, DELETE_REASONS)
        message = to_struct(messages.DeleteEntryRequest, request, participant=self._settings.participant)
        answer = await self._write("deleteEntry", request, context, message, Key=request.key)
        return to_message(pb.DeleteEntryResponse, answer)

    @answered
    async def CheckKeys(self, request: pb.CheckKeysRequest, context: Context) -> pb.CheckKeysResponse:
        if not 1 <= len(request.keys) <= MOST_KEYS:
            raise InvalidArgument(f"{len(request.keys)} keys: from 1 to {MOST_KEYS} are checked at once")
        for key in request.keys:
            checked_key(key)
        message = to_struct(messages.CheckKeysRequest, request)
        return to_message(pb.CheckKeysResponse, await self._read("checkKeys", context, message=message))

    @answered
    async def PaymentSent(self, request: pb.PaymentSentRequest, context: Context) -> pb.PaymentSentResponse:
        checked_payment(request)
        return pb.PaymentSentResponse(counted=self._calls.balances.paid(request.end_to_end_id, request.payer_id))


class Claims(_Service, rpc.ClaimsServicer):
    @answered
    async def CreateClaim(self, request: pb.CreateClaimRequest, context: Context) -> pb.ClaimResponse:
        message = to_struct(messages.CreateClaimRequest, request)
        refuse("ClaimInvalid", claim_violations(message.claim))
        self._ours(message.claim.claimer_account, "claim.claimerAccount.participant")
        recover = functools.partial(self._find_claim, message.claim)
        return to_message(
            pb.ClaimResponse, await self._write("createClaim", request, context, message, recover=recover)
        )

    async def _find_claim(self, wanted: Claim, until: float, since: datetime) -> Struct | None:
        """The directory has no RequestId for claims: after an unknown outcome it is asked whether the claim is there.
        A claim is ours if it was changed since, at the earliest a minute before, to allow for different clocks."""
        since = first = since - _CLOCKS_APART
        while True:
            query = self._of_participant(
                IsClaimer="true", Status="OPEN", Limit=str(MOST_LISTED), Type=wanted.type, ModifiedAfter=_time(since)
            )
            found = await self._calls.call(DirectoryRequest(operation=OPERATIONS["listClaims"], query=query), until)
            listed = cast(messages.ListClaimsResponse, found)
            for claim in listed.claims:
                if is_of_same_claimer(claim, wanted) and claim.last_modified >= first:
                    return messages.CreateClaimResponse(
                        response_time=listed.response_time, correlation_id=listed.correlation_id, claim=claim
                    )
            if not listed.has_more_elements or not listed.claims or listed.claims[-1].last_modified <= since:
                return None
            since = listed.claims[-1].last_modified

    @answered
    async def GetClaim(self, request: pb.GetClaimRequest, context: Context) -> pb.ClaimResponse:
        found = await self._read("getClaim", context, path={"ClaimId": str(checked_uuid(request.claim_id))})
        return to_message(pb.ClaimResponse, found)

    @answered
    async def ListClaims(self, request: pb.ListClaimsRequest, context: Context) -> pb.ListClaimsResponse:
        if request.type and request.type not in ClaimType.__members__:
            raise InvalidArgument(f"type {request.type!r}: OWNERSHIP or PORTABILITY")
        if unknown := set(request.status) - LISTED_STATUSES:
            raise InvalidArgument(f"status {min(unknown)!r}: one of {', '.join(sorted(LISTED_STATUSES))}")
        query = self._of_participant(
            IsDonor=_flag(request, "is_donor"),
            IsClaimer=_flag(request, "is_claimer"),
            Type=request.type,
            ModifiedAfter=_time(moment(request, "modified_after")),
            ModifiedBefore=_time(moment(request, "modified_before")),
            Limit=checked_limit(request.limit),
        )
        query += tuple(("Status", one) for one in request.status)
        return to_message(pb.ListClaimsResponse, await self._read("listClaims", context, query=query))

    @answered
    async def AcknowledgeClaim(self, request: pb.AcknowledgeClaimRequest, context: Context) -> pb.ClaimResponse:
        return await self._act("acknowledgeClaim", messages.AcknowledgeClaimRequest, request, context)

    @answered
    async def ConfirmClaim(self, request: pb.ConfirmClaimRequest, context: Context) -> pb.ClaimResponse:
        checked_reason(request.reason, CONFIRM_REASONS)
        return await self._act("confirmClaim", messages.ConfirmClaimRequest, request, context)

    @answered
    async def CancelClaim(self, request: pb.CancelClaimRequest, context: Context) -> pb.ClaimResponse:
        checked_reason(request.reason, CLAIM_REASONS)
        return await self._act("cancelClaim", messages.CancelClaimRequest, request, context)

    @answered
    async def CompleteClaim(self, request: pb.CompleteClaimRequest, context: Context) -> pb.ClaimResponse:
        checked_uuid(request.request_id, random=True)
        return await self._act("completeClaim", messages.CompleteClaimRequest, request, context)

    async def _act(self, name: str, kind: type[Struct], request: Any, context: Context) -> pb.ClaimResponse:
        claim_id = checked_uuid(request.claim_id)
        message = to_struct(kind, request, participant=self._settings.participant)
        return to_message(pb.ClaimResponse, await self._write(name, request, context, message, ClaimId=str(claim_id)))

    def _of_participant(self, **query: str) -> tuple[tuple[str, str], ...]:
        return participant_query(self._settings.participant, query)


class Reconciliation(_Service, rpc.ReconciliationServicer):
    @answered
    async def CreateSyncVerification(
        self, request: pb.CreateSyncVerificationRequest, context: Context
    ) -> pb.SyncVerificationResponse:
        checked_key_type(request.key_type)
        checked_digest("participant_sync_verifier", request.participant_sync_verifier)
        verification = to_struct(messages.SyncVerification, request, participant=self._settings.participant)
        message = messages.CreateSyncVerificationRequest(sync_verification=verification)
        answer = await self._write("createSyncVerification", request, context, message)
        return to_message(pb.SyncVerificationResponse, answer)

    @answered
    async def ListCidEvents(self, request: pb.ListCidEventsRequest, context: Context) -> pb.ListCidEventsResponse:
        checked_key_type(request.key_type)
        query = participant_query(
            self._settings.participant,
            {
                "KeyType": request.key_type,
                "StartTime": _time(moment(request, "start_time")),
                "EndTime": _time(moment(request, "end_time")),
                "Limit": checked_limit(request.limit),
            },
        )
        return to_message(pb.ListCidEventsResponse, await self._read("listCidSetEvents", context, query=query))

    @answered
    async def GetEntryByCid(self, request: pb.GetEntryByCidRequest, context: Context) -> pb.GetEntryByCidResponse:
        checked_digest("cid", request.cid)
        return to_message(
            pb.GetEntryByCidResponse, await self._read("getEntryByCid", context, path={"Cid": request.cid})
        )


def participant_query(participant: str, query: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return (("Participant", participant), *((name, value) for name, value in query.items() if value))


def refuse(name: str, violations: list[Violation]) -> None:
    """As the directory would, before it costs a token. Raises DirectoryRefused."""
    if violations:
        first = violations[0]
        raise DirectoryRefused(name, f"{first.property or 'the request'}: {first.reason}", violations=violations)


def checked_key(key: str) -> None:
    if key_type_of(key) is None:
        raise InvalidArgument(f"key {key[:80]!r} is no key: a CPF, CNPJ, phone, e-mail address or EVP")


def checked_payment(request: pb.GetEntryRequest | pb.PaymentSentRequest) -> None:
    if not PAYER.fullmatch(request.payer_id):
        raise InvalidArgument("payer_id must be the CPF (11 digits) or CNPJ (14 digits) of the payer")
    if not request.end_to_end_id.isalnum() or not request.end_to_end_id.isascii():
        raise InvalidArgument("end_to_end_id must be the EndToEndId of the payment")


def checked_key_type(key_type: str) -> None:
    if key_type not in KeyType.__members__:
        raise InvalidArgument(f"key_type {key_type!r}: one of {', '.join(KeyType)}")


def checked_limit(limit: int) -> str:
    if not 0 <= limit <= MOST_LISTED:
        raise InvalidArgument(f"limit {limit}: from 1 to {MOST_LISTED}, or 0 for the usual one")
    return str(limit) if limit else ""


def checked_reason(reason: str, allowed: Collection[str]) -> None:
    if reason not in allowed:
        why = f"is not one of {', '.join(sorted(allowed))}"
        refuse("InvalidReason", [Violation(reason=why, value=reason, property="reason")])


def checked_digest(name: str, text: str) -> None:
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise InvalidArgument(f"{name} must have 64 hexadecimal digits in small letters")


def checked_uuid(text: str, *, random: bool = False) -> UUID:
    """`random`: of version 4, as the directory wants request ids that become part of a CID."""
    try:
        found = UUID(text)
    except ValueError:
        raise InvalidArgument(f"{text[:80]!r} is no UUID") from None
    if random and found.version != 4:
        raise InvalidArgument(f"request_id {text!r} is no UUID of version 4")
    return found


def checked_request_id(text: str) -> str:
    if not 1 <= len(text) <= 100 or not text.isascii() or not text.isprintable():
        raise InvalidArgument("request_id must have 1 to 100 printable ASCII characters: the same for every attempt")
    return text


def _flag(request: Any, name: str) -> str:
    return str(getattr(request, name)).lower() if request.HasField(name) else ""


def _time(given: datetime | None) -> str:
    return "" if given is None else spelled_time(given)
