"""Log records are redacted whatever formats them: message, arguments, traceback, stack, extra."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from batuta import LogContext
from batuta.redaction import RedactingFilter, Redactor

CPF = "529.982.247-25"
SECRET = "hunter2"


class AsJson(logging.Formatter):
    """As formatters of JSON do: all that a record has."""

    def format(self, record: logging.LogRecord) -> str:
        record.getMessage()
        return json.dumps(vars(record), default=str)


class Log:
    def __init__(self, formatter: logging.Formatter) -> None:
        self.stream, self.logger = io.StringIO(), logging.getLogger("tests.redaction")
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(formatter)
        self.handler.addFilter(LogContext())
        self.handler.addFilter(RedactingFilter())
        self.logger.addHandler(self.handler)
        self.logger.propagate = False

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture(params=[logging.Formatter("%(message)s"), AsJson()], ids=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(request.param)
    yield made
    made.logger.removeHandler(made.handler)
    made.logger.propagate = True


class Payer:
    def __str__(self) -> str:
        return f"payer {CPF}"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError(CPF)


def hidden(log: Log) -> None:
    assert log.text
    assert not [secret for secret in ("529.982", "982.247", SECRET) if secret in log.text]


@pytest.mark.parametrize(
    ("message", "args"),
    [
        (f"payer {CPF}", ()),
        ("payer %s", (CPF,)),
        ("payer %.6s", (CPF,)),  # cut off after it was hidden
        ("payer %(cpf)s", ({"cpf": SECRET},)),
        ("payer %r of %d", ({"data": [CPF]}, 7)),
        ("%s", (Payer(),)),
        ("%s", (ValueError(CPF),)),
        ("not enough %s %s", (CPF,)),
        ("not a number %d", (CPF,)),
        (Payer(), ()),
        ("password=%s", (SECRET,)),
    ],
)
def test_messages_and_their_arguments(log: Log, message: Any, args: tuple[Any, ...]) -> None:
    log.logger.warning(message, *args)
    hidden(log)


def test_tracebacks_with_their_causes_and_stacks(log: Log) -> None:
    try:
        try:
            raise KeyError(CPF)
        except KeyError as error:
            raise ValueError(f"password={SECRET}") from error
    except ValueError:
        log.logger.exception("refused", stack_info=True)
    hidden(log)
    assert "KeyError: '[cpf]'" in log.text
    assert "ValueError: password=[password]" in log.text
    assert "test_logs.py" in log.text


def test_extra_fields_are_redacted_by_name_and_by_value() -> None:
    log = Log(AsJson())
    extra = {"payer": {"x": [CPF]}, "user_password": SECRET, "who": Payer(), "odd": Broken(), "count": 3, "t": (CPF, 1)}
    try:
        log.logger.warning("refused", extra=extra)
    finally:
        log.logger.removeHandler(log.handler)
        log.logger.propagate = True
    hidden(log)
    said = json.loads(log.text)
    assert (said["payer"], said["user_password"], said["who"]) == ({"x": ["[cpf]"]}, "[password]", "payer [cpf]")
    assert (said["odd"], said["count"], said["t"], said["run"]) == ("[Broken]", 3, ["[cpf]", 1], "")


def test_two_handlers_with_the_filter_show_the_same() -> None:
    record = logging.makeLogRecord({"msg": "payer %s", "args": (CPF,)})
    for _ in range(2):
        assert RedactingFilter(Redactor()).filter(record)
    assert record.getMessage() == "payer [cpf]"


def test_the_filter_takes_the_redactor_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_REDACT", "tests.redaction.test_redactor:mine")
    record = logging.makeLogRecord({"msg": "B-1234 of 100%"})
    RedactingFilter().filter(record)
    assert record.getMessage() == "[badge] of 100%"
