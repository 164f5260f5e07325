"""Refusals of the directory: names, statuses, and whether sending the request again can help."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

ERROR_BASE = "https://dict.pi.rsfn.net.br/api/v2/error/"
NAMESPACE = "urn:ietf:rfc:7807"


class Violation(Struct, frozen=True, kw_only=True, rename="camel"):
    """One field that is wrong."""

    reason: str
    value: str | None = None
    property: str | None = None


class Problem(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a refusal."""

    type: str
    title: str
    status: int
    detail: str | None = None
    correlation_id: str | None = None
    violations: list[Violation] | None = None

    @property
    def name(self) -> str:
        """The last part of `type`: what to compare."""
        return self.type.strip().rstrip("/").rpartition("/")[2]


class RetryClass(StrEnum):
    """What a client may do after a refusal."""

    AGAIN = "again"
    """The same request with the same RequestId, after a pause or `Retry-After`."""
    AFTER_REFILL = "after_refill"
    """Only when the bucket has tokens again."""
    NEVER = "never"


STATUS: dict[str, int] = {
    **dict.fromkeys(
        (
            "BadRequest",
            "RequestSignatureInvalid",
            "RequestIdAlreadyUsed",
            "InvalidReason",
            "ParticipantInvalid",
            "TaxIdNumberBlocked",
            "UserOrAccountWithFraudRelatedRestriction",
            "EntryInvalid",
            "EntryLimitExceeded",
            "EntryAlreadyExists",
            "EntryCannotBeQueriedForBookTransfer",
            "EntryKeyOwnedByDifferentPerson",
            "EntryKeyInCustodyOfDifferentParticipant",
            "EntryLockedByClaim",
            "EntryTaxIdNumberByDifferentOwner",
            "EntryBlocked",
            "EntryWithFraudRelatedRestriction",
            "ClaimInvalid",
            "ClaimTypeInconsistent",
            "ClaimAlreadyExistsForKey",
            "ClaimResultingEntryAlreadyExists",
            "ClaimOperationInvalid",
            "ClaimResolutionPeriodNotEnded",
            "ClaimCompletionPeriodNotEnded",
        ),
        400,
    ),
    "Forbidden": 403,
    "NotFound": 404,
    "ClaimKeyNotFound": 404,
    "ResourceConflict": 409,
    "Gone": 410,
    "DeprecatedResource": 410,
    "RateLimited": 429,
    "InternalServerError": 500,
    "ServiceUnavailable": 503,
}
"""The problems of entries, claims, reconciliation and policies. There are others: a client takes the status as well."""


def retry_class(status: int) -> RetryClass:
    """What a client may do after an answer with that status."""
    if status == 429:
        return RetryClass.AFTER_REFILL
    return RetryClass.AGAIN if status in (409, 500, 503) else RetryClass.NEVER


def title_of(name: str) -> str:
    """Words of a name: `EntryLockedByClaim` is "Entry locked by claim"."""
    words = "".join(f" {character.lower()}" if character.isupper() else character for character in name)
    return words.strip().capitalize()


class DirectoryRefused(Exception):
    """The directory refused a request. `name` is the last part of the problem's type."""

    def __init__(
        self,
        name: str,
        detail: str | None = None,
        *,
        violations: Sequence[Violation] = (),
        status: int | None = None,
        correlation_id: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(f"{name}: {detail}" if detail else name)
        self.name = name
        self.detail = detail
        self.violations = list(violations)
        self.status = STATUS.get(name, 400) if status is None else status
        self.correlation_id = correlation_id
        self.retry_after = retry_after

    @property
    def retry(self) -> RetryClass:
        """What the client may do now."""
        return retry_class(self.status)

    def problem(self, correlation_id: str | None = None) -> Problem:
        """The body that tells it."""
        return Problem(
            type=ERROR_BASE + self.name,
            title=title_of(self.name),
            status=self.status,
            detail=self.detail,
            correlation_id=correlation_id or self.correlation_id,
            violations=self.violations or None,
        )

    @classmethod
    def of(cls, problem: Problem, *, retry_after: int | None = None) -> DirectoryRefused:
        """The refusal that a body tells."""
        return cls(
            problem.name,
            problem.detail,
            violations=problem.violations or (),
            status=problem.status,
            correlation_id=problem.correlation_id,
            retry_after=retry_after,
        )
