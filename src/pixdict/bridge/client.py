"""The client of the Bridge: messages of the directory in and out, and errors as activities raise them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self, TypeVar
from uuid import UUID

import grpc
from google.protobuf.message import Message
from msgspec import Struct

from pixdict.bridge.errors import error_of
from pixdict.bridge.messages import LARGEST, stamp, to_message, to_struct
from pixdict.dict import messages
from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Account, Entry, Person
from pixdict.errors import InvalidArgument
from pixdict.proto import bridge_pb2 as pb
from pixdict.proto import bridge_pb2_grpc as rpc
from pixdict.readings import LookUp, PolicyReading

S = TypeVar("S", bound=Struct)

_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2_000)]
"""gRPC's own limit is two minutes: for so long calls would fail although the Bridge is back."""
TIMEOUT = 20.0
"""Seconds of a call: three attempts of 5 s, and the waits between them."""


class BridgeClient:
    """`async with BridgeClient("127.0.0.1:50051") as bridge`. Methods raise BridgeUnavailable, BridgeError,
    InvalidArgument, Refused, NotFound, RateLimited. `timeout` is the deadline of each call, in seconds."""

    def __init__(self, address: str, *, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self.channel = grpc.aio.insecure_channel(address, options=_RECONNECT)
        self._limits: Any = rpc.RateLimitsStub(self.channel)
        self._entries: Any = rpc.EntriesStub(self.channel)
        self._claims: Any = rpc.ClaimsStub(self.channel)
        self._reconciliation: Any = rpc.ReconciliationStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)

    async def list_policies(self) -> list[PolicyReading]:
        """The state of every bucket of the participant."""
        found = await self._call(self._limits.ListPolicies, pb.ListPoliciesRequest())
        return [_reading(policy) for policy in found.policies]

    async def get_policy(self, name: str) -> PolicyReading:
        return _reading((await self._call(self._limits.GetPolicy, pb.GetPolicyRequest(policy_name=name))).policy)

    async def create_entry(self, entry: Entry, *, reason: str, request_id: str | UUID) -> messages.CreateEntryResponse:
        """`request_id`: a UUID of version 4, kept before the first call and given again with every repetition."""
        sent = pb.CreateEntryRequest(request_id=str(request_id), reason=reason, entry=to_message(pb.Entry, entry))
        return await self._get(messages.CreateEntryResponse, self._entries.CreateEntry, sent)

    async def get_entry(self, key: str, *, payer_id: str, end_to_end_id: str) -> LookUp:
        sent = pb.GetEntryRequest(key=key, payer_id=payer_id, end_to_end_id=end_to_end_id)
        return await self._get(LookUp, self._entries.GetEntry, sent)

    async def payment_sent(self, end_to_end_id: str, payer_id: str) -> bool:
        """The payment of a look-up was sent, and the directory gives tokens back. False: this Bridge knows no such
        look-up, or was told before."""
        sent = pb.PaymentSentRequest(end_to_end_id=end_to_end_id, payer_id=payer_id)
        return bool((await self._call(self._entries.PaymentSent, sent)).counted)

    async def update_entry(
        self,
        key: str,
        *,
        reason: str,
        request_id: str | UUID,
        account: Account | None = None,
        owner: Person | None = None,
    ) -> messages.UpdateEntryResponse:
        sent = pb.UpdateEntryRequest(
            request_id=str(request_id),
            key=key,
            reason=reason,
            account=None if account is None else to_message(pb.Account, account),
            owner=None if owner is None else to_message(pb.Person, owner),
        )
        return await self._get(messages.UpdateEntryResponse, self._entries.UpdateEntry, sent)

    async def delete_entry(self, key: str, *, reason: str, request_id: str | UUID) -> messages.DeleteEntryResponse:
        sent = pb.DeleteEntryRequest(request_id=str(request_id), key=key, reason=reason)
        return await self._get(messages.DeleteEntryResponse, self._entries.DeleteEntry, sent)

    async def check_keys(self, keys: Sequence[str]) -> dict[str, bool]:
        """Whether each of up to 200 keys is registered."""
        found = await self._call(self._entries.CheckKeys, pb.CheckKeysRequest(keys=keys))
        return {one.key: one.has_entry for one in found.keys}

    async def create_claim(self, claim: Claim, *, request_id: str | UUID) -> ExtendedClaim:
        sent = pb.CreateClaimRequest(request_id=str(request_id), claim=to_message(pb.Claim, claim))
        return (await self._get(messages.CreateClaimResponse, self._claims.CreateClaim, sent)).claim

    async def get_claim(self, claim_id: str | UUID) -> ExtendedClaim:
        sent = pb.GetClaimRequest(claim_id=str(claim_id))
        return (await self._get(messages.GetClaimResponse, self._claims.GetClaim, sent)).claim

    async def list_claims(
        self,
        *,
        is_donor: bool | None = None,
        is_claimer: bool | None = None,
        status: Sequence[str] = (),
        type: str = "",
        modified_after: datetime | None = None,
        modified_before: datetime | None = None,
        limit: int = 0,
    ) -> messages.ListClaimsResponse:
        """In the order of their last change. Times are inclusive: leave out the ids that you know."""
        sent = pb.ListClaimsRequest(
            is_donor=is_donor,
            is_claimer=is_claimer,
            status=status,
            type=type,
            modified_after=stamp(modified_after),
            modified_before=stamp(modified_before),
            limit=limit,
        )
        return await self._get(messages.ListClaimsResponse, self._claims.ListClaims, sent)

    async def acknowledge_claim(self, claim_id: str | UUID, *, request_id: str | UUID) -> ExtendedClaim:
        sent = pb.AcknowledgeClaimRequest(request_id=str(request_id), claim_id=str(claim_id))
        return (await self._get(messages.AcknowledgeClaimResponse, self._claims.AcknowledgeClaim, sent)).claim

    async def confirm_claim(self, claim_id: str | UUID, *, reason: str, request_id: str | UUID) -> ExtendedClaim:
        sent = pb.ConfirmClaimRequest(request_id=str(request_id), claim_id=str(claim_id), reason=reason)
        return (await self._get(messages.ConfirmClaimResponse, self._claims.ConfirmClaim, sent)).claim

    async def cancel_claim(self, claim_id: str | UUID, *, reason: str, request_id: str | UUID) -> ExtendedClaim:
        sent = pb.CancelClaimRequest(request_id=str(request_id), claim_id=str(claim_id), reason=reason)
        return (await self._get(messages.CancelClaimResponse, self._claims.CancelClaim, sent)).claim

    async def complete_claim(self, claim_id: str | UUID, *, request_id: str | UUID) -> messages.CompleteClaimResponse:
        """`request_id`: a UUID of version 4, from which the CID of the new entry is made."""
        sent = pb.CompleteClaimRequest(request_id=str(request_id), claim_id=str(claim_id))
        return await self._get(messages.CompleteClaimResponse, self._claims.CompleteClaim, sent)

    async def create_sync_verification(
        self, key_type: str, verifier: str, *, request_id: str | UUID
    ) -> messages.ExtendedSyncVerification:
        """Whether the directory has the same XOR of all CIDs of that key type."""
        sent = pb.CreateSyncVerificationRequest(
            request_id=str(request_id), key_type=key_type, participant_sync_verifier=verifier
        )
        found = await self._get(
            messages.CreateSyncVerificationResponse, self._reconciliation.CreateSyncVerification, sent
        )
        return found.sync_verification

    async def list_cid_events(
        self, key_type: str, *, start_time: datetime, end_time: datetime | None = None, limit: int = 0
    ) -> messages.ListCidSetEventsResponse:
        """In the order of their time, which is inclusive: leave out the events that you know."""
        sent = pb.ListCidEventsRequest(
            key_type=key_type, start_time=stamp(start_time), end_time=stamp(end_time), limit=limit
        )
        return await self._get(messages.ListCidSetEventsResponse, self._reconciliation.ListCidEvents, sent)

    async def get_entry_by_cid(self, cid: str) -> messages.GetEntryByCidResponse:
        sent = pb.GetEntryByCidRequest(cid=cid)
        return await self._get(messages.GetEntryByCidResponse, self._reconciliation.GetEntryByCid, sent)

    async def _get(self, kind: type[S], method: Any, request: Message) -> S:
        return to_struct(kind, await self._call(method, request))

    async def _call(self, method: Any, request: Message) -> Any:
        if request.ByteSize() > LARGEST:  # else gRPC would say RESOURCE_EXHAUSTED, as for an empty bucket
            raise InvalidArgument(f"the request has {request.ByteSize()} bytes; a Bridge reads {LARGEST} at most")
        try:
            return await method(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error


def _reading(policy: pb.Policy) -> PolicyReading:
    return PolicyReading(
        policy_name=policy.policy_name,
        category=policy.category,
        capacity=policy.capacity,
        refill_tokens=policy.refill_tokens,
        refill_period_sec=policy.refill_period_sec,
        available_tokens=policy.available_tokens,
        warning_threshold_pct=policy.warning_threshold_pct,
        critical_threshold_pct=policy.critical_threshold_pct,
    )
