"""Rules of entries: create, look up, update, delete, check."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from msgspec.structs import replace

from pixdict.dict import messages
from pixdict.dict.cids import cid_of
from pixdict.dict.entries import (
    CREATE_REASONS,
    DELETE_REASONS,
    KEYS_PER_ACCOUNT,
    UPDATE_REASONS,
    UPDATE_REASONS_EVP,
    Account,
    Entry,
    ExtendedEntry,
    Person,
    account_identity,
    account_violations,
    entry_violations,
    person_violations,
)
from pixdict.dict.keys import KeyType, key_type_of, normalised, normalised_key
from pixdict.dict.problems import DirectoryRefused, Violation
from pixdict.directory.context import Context, random_uuid
from pixdict.directory.storage import StoredEntry

MAX_CHECKED_KEYS = 200


def create_entry(context: Context, asked: messages.CreateEntryRequest) -> messages.CreateEntryResponse:
    """Register a key. The same request again gets the same answer."""
    entry = asked.entry
    _check_fields("EntryInvalid", entry_violations(entry, check_digits=context.settings.check_digits))
    _check_reason(asked.reason, CREATE_REASONS)
    check_request_id(asked.request_id)
    participant = entry.account.participant
    context.check_acts_for(participant)
    if entry.key is not None:
        entry = replace(entry, key=normalised(entry.key_type, entry.key))
    fingerprint = cid_of(entry, asked.request_id)
    if (repeated := _repeated(context, participant, asked.request_id, fingerprint)) is not None:
        return messages.CreateEntryResponse(entry=_shown(context, repeated.entry), **context.envelope)
    if entry.key is not None:
        _check_tax_id(entry.key_type, entry.key, entry.owner)
        _check_key_is_free(context, entry.key, entry)
    check_key_limit(context, entry.account, entry.owner)
    key = entry.key or str(random_uuid())
    stored = store_new_entry(context, replace(entry, key=key), asked.request_id, fingerprint)
    return messages.CreateEntryResponse(entry=stored.entry, **context.envelope)


def check_request_id(request_id: UUID) -> None:
    """Request ids are random UUIDs. Raises DirectoryRefused."""
    if request_id.version != 4:
        raise DirectoryRefused("BadRequest", f"RequestId {request_id} is not a UUID of version 4")


def store_new_entry(
    context: Context, entry: Entry, request_id: UUID, fingerprint: str, owned_since: datetime | None = None
) -> StoredEntry:
    """Add an entry that all rules allow, and remember its request id."""
    assert entry.key is not None  # noqa: S101 - made by the caller
    created = context.moment
    extended = ExtendedEntry(
        key=entry.key,
        key_type=entry.key_type,
        account=entry.account,
        owner=entry.owner,
        creation_date=created,
        key_ownership_date=owned_since or created,
    )
    stored = StoredEntry(extended, cid_of(entry, request_id), request_id)
    context.storage.put_entry(stored, context.now)
    context.storage.add_request(entry.account.participant, request_id, fingerprint, entry.key)
    return stored


def _repeated(context: Context, participant: str, request_id: UUID, fingerprint: str) -> StoredEntry | None:
    """The entry that the same request made before. Refused when the id was used for something else, or when the entry
    is not there any more [?]: a late repeat must not bring it back."""
    used = context.storage.request(participant, request_id)
    if used is None:
        return None
    known, key = used
    stored = context.storage.entry(key)
    if known == fingerprint and stored is not None and stored.request_id == request_id:
        return stored
    why = "other data" if known != fingerprint else "an entry that was removed since"
    raise DirectoryRefused("RequestIdAlreadyUsed", f"RequestId {request_id} was used for {why}")


def _check_fields(name: str, violations: list[Violation]) -> None:
    if violations:
        raise DirectoryRefused(name, "fields are invalid", violations=violations)


def _check_reason(reason: str, allowed: Collection[str]) -> None:
    if reason not in allowed:
        raise DirectoryRefused("InvalidReason", f"reason {reason} is not allowed here: {', '.join(sorted(allowed))}")


def _check_tax_id(key_type: str, key: str, owner: Person) -> None:
    if key_type in (KeyType.CPF, KeyType.CNPJ) and key != owner.tax_id_number:
        raise DirectoryRefused("EntryTaxIdNumberByDifferentOwner", "the key is the tax id of someone else")


def _check_key_is_free(context: Context, key: str, entry: Entry) -> None:
    if context.storage.unfinished_claim(key) is not None:
        raise DirectoryRefused("EntryLockedByClaim", "a claim for this key is not finished")
    stored = context.storage.entry(key)
    if stored is None:
        return
    same_owner = stored.entry.owner.tax_id_number == entry.owner.tax_id_number
    if not same_owner:
        raise DirectoryRefused("EntryKeyOwnedByDifferentPerson", "the key belongs to someone else: claim its ownership")
    if stored.entry.account.participant != entry.account.participant:
        raise DirectoryRefused("EntryKeyInCustodyOfDifferentParticipant", "the key is elsewhere: claim its portability")
    raise DirectoryRefused("EntryAlreadyExists", "the owner has this key at this participant: update the entry")


def check_key_limit(context: Context, account: Account, owner: Person) -> None:
    """Refuse one key too many for an account. Raises DirectoryRefused."""
    most = KEYS_PER_ACCOUNT[owner.type]
    if context.storage.keys_of_account(account_identity(account)) >= most:
        raise DirectoryRefused("EntryLimitExceeded", f"the account has {most} keys already")


def _shown(context: Context, entry: ExtendedEntry) -> ExtendedEntry:
    """An entry with the claim that is open for it."""
    claim = context.storage.unfinished_claim(entry.key)
    return replace(entry, open_claim_creation_date=claim.created) if claim else entry


def existing(context: Context, key: str) -> StoredEntry:
    """The entry of a key. Raises DirectoryRefused when there is none."""
    stored = context.storage.entry(normalised_key(key))
    if stored is None:
        raise DirectoryRefused("NotFound", "no entry has this key")
    return stored


def get_entry(context: Context, key: str) -> ExtendedEntry:
    """A lookup. Its buckets are counted by the caller."""
    if key_type_of(key) is None:
        raise DirectoryRefused(
            "BadRequest", "this is no key of any type", violations=[Violation(reason="is no key", value=key)]
        )
    entry = existing(context, key).entry
    if context.settings.refuse_own_lookups and entry.account.participant == context.requester:
        raise DirectoryRefused("EntryCannotBeQueriedForBookTransfer", "the key is one of your own")
    return _shown(context, entry)


def update_entry(context: Context, key: str, asked: messages.UpdateEntryRequest) -> messages.UpdateEntryResponse:
    """Change the account or the names of an entry."""
    if asked.key != key:
        raise DirectoryRefused("BadRequest", "the key of the path is not that of the body")
    if asked.account is None and asked.owner is None:
        raise DirectoryRefused("BadRequest", "Account and Owner are both missing: nothing to update")
    violations = [
        *(account_violations(asked.account, "account") if asked.account else ()),
        *(person_violations(asked.owner, "owner") if asked.owner else ()),
    ]
    _check_fields("EntryInvalid", violations)
    _check_reason(asked.reason, UPDATE_REASONS_EVP if key_type_of(key) == KeyType.EVP else UPDATE_REASONS)
    stored = existing(context, key)
    entry = stored.entry
    _check_custodian(context, entry)
    if asked.account and asked.account.participant != entry.account.participant:
        raise DirectoryRefused("Forbidden", "an update cannot move a key to another participant: claim its portability")
    if asked.owner and asked.owner.tax_id_number != entry.owner.tax_id_number:
        wrong = Violation(
            reason="the owner cannot change", value=asked.owner.tax_id_number, property="owner.taxIdNumber"
        )
        _check_fields("EntryInvalid", [wrong])
    account, owner = asked.account or entry.account, asked.owner or entry.owner
    if account_identity(account) != account_identity(entry.account):
        check_key_limit(context, account, owner)
    changed = replace(entry, account=account, owner=owner)
    cid = cid_of(Entry(key=entry.key, key_type=entry.key_type, account=account, owner=owner), stored.request_id)
    if cid != stored.cid or changed != entry:
        context.storage.put_entry(replace(stored, entry=changed, cid=cid), context.now)
    return messages.UpdateEntryResponse(entry=_shown(context, changed), **context.envelope)


def _check_custodian(context: Context, entry: ExtendedEntry) -> None:
    if not context.acts_for(entry.account.participant):
        raise DirectoryRefused("Forbidden", "the key is held by another participant")


def delete_entry(context: Context, key: str, asked: messages.DeleteEntryRequest) -> messages.DeleteEntryResponse:
    """Remove an entry."""
    if asked.key != key:
        raise DirectoryRefused("BadRequest", "the key of the path is not that of the body")
    _check_reason(asked.reason, DELETE_REASONS)
    context.check_acts_for(asked.participant)
    stored = existing(context, key)
    if stored.entry.account.participant != asked.participant:
        raise DirectoryRefused("Forbidden", "the key is held by another participant")
    if context.storage.unfinished_claim(stored.entry.key) is not None:
        raise DirectoryRefused("EntryLockedByClaim", "a claim for this key is not finished")
    context.storage.remove_entry(stored, context.now)
    return messages.DeleteEntryResponse(key=stored.entry.key, **context.envelope)


def check_keys(context: Context, asked: messages.CheckKeysRequest) -> messages.CheckKeysResponse:
    """Tell for each key whether it is registered."""
    if not 1 <= len(asked.keys) <= MAX_CHECKED_KEYS:
        why = f"{len(asked.keys)} keys were given: 1 to {MAX_CHECKED_KEYS} are checked at once"
        raise DirectoryRefused("BadRequest", why)
    wrong = [
        Violation(reason="is no key", value=key, property="keys.key") for key in asked.keys if not key_type_of(key)
    ]
    _check_fields("BadRequest", wrong)
    checked = [
        messages.CheckedKey(key=key, has_entry=context.storage.has_key(normalised_key(key))) for key in asked.keys
    ]
    return messages.CheckKeysResponse(keys=checked, **context.envelope)
