"""The operations of the API as a table: method, path, policy and messages of each. Both sides read it."""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Struct

from pixdict.dict import messages

BASE = "/api/v2"
NON_PRIORITY_BASE = "/api-np/v2"
"""Where `keys/check` is in production: on another host."""


class Operation(Struct, frozen=True, kw_only=True):
    """One operation. `policy` is "" where the request decides."""

    name: str
    method: str
    path: str
    """Below the base; variable parts in braces."""
    policy: str
    ok: int = 200
    request: type[Struct] | None = None
    response: type[Struct]
    signed: bool = False
    """Whether a request must carry a signature."""
    participant_header: bool = False
    """Whether a request must say who asks."""

    def path_for(self, **values: str) -> str:
        """The path with its variable parts filled in."""
        return BASE + self.path.format_map({name: quote(value, safe="") for name, value in values.items()})


def _write(name: str, path: str, policy: str, *, method: str = "POST", ok: int = 200) -> Operation:
    base = name[0].upper() + name[1:]
    return Operation(
        name=name,
        method=method,
        path=path,
        policy=policy,
        ok=ok,
        request=getattr(messages, f"{base}Request"),
        response=getattr(messages, f"{base}Response"),
        signed=True,
    )


def _read(name: str, path: str, policy: str, *, header: bool = True, response: str = "") -> Operation:
    kind = getattr(messages, response or f"{name[0].upper()}{name[1:]}Response")
    return Operation(name=name, method="GET", path=path, policy=policy, response=kind, participant_header=header)


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        _write("createEntry", "/entries/", "ENTRIES_WRITE", ok=201),
        _read("getEntry", "/entries/{Key}", ""),
        _write("updateEntry", "/entries/{Key}", "ENTRIES_UPDATE", method="PUT"),
        _write("deleteEntry", "/entries/{Key}/delete", "ENTRIES_WRITE"),
        _read("getEntryStatistics", "/entries/{Key}/statistics", "ENTRIES_STATISTICS_READ"),
        Operation(
            name="checkKeys",
            method="POST",
            path="/keys/check",
            policy="KEYS_CHECK",
            request=messages.CheckKeysRequest,
            response=messages.CheckKeysResponse,
        ),
        _write("createClaim", "/claims/", "CLAIMS_WRITE", ok=201),
        _read("listClaims", "/claims/", "", header=False),
        _read("getClaim", "/claims/{ClaimId}", "CLAIMS_READ"),
        _write("acknowledgeClaim", "/claims/{ClaimId}/acknowledge", "CLAIMS_WRITE"),
        _write("confirmClaim", "/claims/{ClaimId}/confirm", "CLAIMS_WRITE"),
        _write("cancelClaim", "/claims/{ClaimId}/cancel", "CLAIMS_WRITE"),
        _write("completeClaim", "/claims/{ClaimId}/complete", "CLAIMS_WRITE"),
        _write("createSyncVerification", "/sync-verifications/", "SYNC_VERIFICATIONS_WRITE", ok=201),
        _read("listCidSetEvents", "/cids/events", "CIDS_EVENTS_LIST", header=False),
        _read("getEntryByCid", "/cids/entries/{Cid}", "CIDS_ENTRIES_READ"),
        _read("getPersonStatistics", "/persons/{TaxIdNumber}/statistics", "PERSONS_STATISTICS_READ"),
        _read("listPolicies", "/policies/", "POLICIES_LIST"),
        _read("getPolicy", "/policies/{policy}", "POLICIES_READ"),
    )
}
"""By the name of the official document, but for `listPolicies`, which it calls bucketStates."""


def antiscan_policies(key_type: str) -> tuple[str, str]:
    """The two policies of a lookup: of the payer, and of the participant."""
    user = "ENTRIES_READ_USER_ANTISCAN" if key_type in ("EMAIL", "PHONE") else "ENTRIES_READ_USER_ANTISCAN_V2"
    return user, "ENTRIES_READ_PARTICIPANT_ANTISCAN"


def list_claims_policy(*, is_donor: bool | None, is_claimer: bool | None) -> str:
    """The policy of a list of claims. It has a role when exactly one side is asked for."""
    with_role = (is_donor or False) is not (is_claimer or False)
    return "CLAIMS_LIST_WITH_ROLE" if with_role else "CLAIMS_LIST_WITHOUT_ROLE"
