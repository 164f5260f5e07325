"""Fields that hold payloads are marked on their records; one walker codes each of them at its own place."""

from __future__ import annotations

import pytest

from batuta.codecs import Encryption, Keys
from batuta.ids import new_run_id
from batuta.journal.codec_envelope import is_coded, payload_fields
from batuta.journal.records import Attempt, Output, OutputKind
from batuta.journal.schedules import ScheduleRow
from batuta.stores.coded.payloads import Payloads
from batuta.stores.coded.record_codec import RecordCodec, payloads_of

SECRET = '"who"'
RUN = new_run_id()


def test_the_marked_fields_are_found() -> None:
    assert payload_fields(Output) == ("value", "error")
    assert payload_fields(Attempt) == ("error", "details", "tokens")
    assert payload_fields(ScheduleRow) == ("spec",)


@pytest.mark.parametrize("field", ["error", "details", "tokens"])
def test_each_payload_of_an_attempt_is_coded_and_comes_back(field: str) -> None:
    codec = RecordCodec(Payloads([Encryption(Keys.new("k1"))], "default"))
    plain = Attempt(seq=1, number=1, started_at=0, **{field: SECRET})  # type: ignore[arg-type]  # one of them
    coded = codec.attempt(RUN, plain)
    assert [name for name, text in payloads_of(coded).items() if is_coded(text)] == [field]
    assert codec.read_attempt(RUN, coded) == plain
    assert codec.is_current(coded)
    assert not codec.is_current(plain)


def test_a_record_without_payloads_is_given_back_as_it_is() -> None:
    codec = RecordCodec(Payloads([Encryption(Keys.new("k1"))], "default"))
    plain = Output(kind=OutputKind.PUBLISHED, name="n", ord=1, at=0)
    assert codec.output(RUN, None, plain) is plain
