"""Statistics of keys and their owners. The directory counts what it knows: accounts and settled payments; there are no
fraud reports here, so all other counts are 0."""

from __future__ import annotations

from pixdict.dict import messages
from pixdict.dict.entries import ExtendedEntry
from pixdict.dict.headers import PAYER
from pixdict.dict.messages import KeyStatistics, PersonStatistics, Windows
from pixdict.dict.problems import DirectoryRefused
from pixdict.directory.context import Context
from pixdict.directory.entries import existing


def get_entry_statistics(context: Context, key: str) -> messages.GetEntryStatisticsResponse:
    """Of a key and its owner."""
    entry = existing(context, key).entry
    return messages.GetEntryStatisticsResponse(
        key=entry.key,
        owner_statistics=of_person(context, entry.owner.tax_id_number),
        key_statistics=of_key(context, entry),
        **context.envelope,
    )


def get_person_statistics(context: Context, tax_id: str) -> messages.GetPersonStatisticsResponse:
    """Of somebody with keys, or without any."""
    if not PAYER.fullmatch(tax_id):
        raise DirectoryRefused("BadRequest", "a tax id has 11 or 14 digits")
    return messages.GetPersonStatisticsResponse(
        tax_id_number=tax_id, person_statistics=of_person(context, tax_id), **context.envelope
    )


def of_person(context: Context, tax_id: str) -> PersonStatistics:
    """All that is known of an owner."""
    return PersonStatistics(
        spi=messages.Settlements(watermark=context.moment),
        fraud_markers=messages.FraudMarkers(watermark=context.moment),
        infraction_reports=messages.InfractionReports(watermark=context.moment),
        entries=messages.PersonEntries(
            watermark=context.moment, registered_accounts=context.storage.accounts_of_owner(tax_id)
        ),
    )


def of_key(context: Context, entry: ExtendedEntry) -> KeyStatistics:
    """All that is known of a key."""
    count = context.storage.settlements(entry.key)
    return KeyStatistics(
        spi=messages.Settlements(watermark=context.moment, settlements=Windows(d90=count, m12=count, m60=count)),
        fraud_markers=messages.FraudMarkers(watermark=context.moment),
        infraction_reports=messages.InfractionReports(watermark=context.moment),
        entries=messages.KeyEntries(watermark=context.moment, distinct_accounts=Windows(d90=1, m12=1, m60=1)),
    )
