"""`batuta runs signal`, `update`, `query` and `published`, with a worker process beside them."""

import json
from typing import Any

import pytest

from tests.cli.conftest import SHOP, Cli, Work, wait_for

OK, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3


@pytest.fixture
def basket(cli: Cli, work: Work) -> str:
    """A run that waits to be talked to."""
    assert cli("runs", "start", "basket", "--id", "b").exit_code == OK
    work()
    return "b"


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def test_a_run_is_updated_read_asked_and_signalled(cli: Cli, basket: str) -> None:
    assert document(cli, "runs", "update", basket, "put", '"tea"') == {"id": "b", "update": "put", "answer": 1}
    result = cli("runs", "update", basket, "put", '"cup"', "--update-id", "u1", "--timeout", "30")
    assert (result.exit_code, result.stdout) == (OK, "2\n")
    assert cli("runs", "update", basket, "put", '"cup"', "--update-id", "u1").stdout == "2\n"
    assert document(cli, "runs", "published", basket) == {"id": "b", "published": {"last": "cup"}}
    assert cli("runs", "published", basket).stdout == 'last  "cup"\n'
    assert cli("runs", "published", basket, "last").stdout == '"cup"\n'
    assert document(cli, "runs", "published", basket, "last")["value"] == "cup"
    assert document(cli, "runs", "query", "--app", SHOP, basket, "size") == {"id": "b", "query": "size", "answer": 2}
    assert cli("runs", "query", "--app", SHOP, basket, "size", "5").stdout == "7\n"
    sent = document(cli, "runs", "signal", basket, "limit", "1", "--message-id", "only")
    assert (sent["id"], sent["signal"]) == ("b", "limit")
    wait_for(lambda: document(cli, "runs", "show", basket)["state"] == "completed", "its end")
    assert document(cli, "runs", "show", basket)["result"] == ["tea"]
    assert document(cli, "runs", "query", "--app", SHOP, basket, "size")["answer"] == 2


def test_what_the_run_refuses_exits_1_with_its_words(cli: Cli, basket: str) -> None:
    for words, said in (
        (("update", basket, "put", '"far too long a name"'), "too long a name"),
        (("update", basket, "nothing"), "it takes: put"),
        (("query", "--app", SHOP, basket, "nothing"), "it answers: size"),
        (("query", "--app", SHOP, basket, "size", '"x"'), "does not fit"),
        (("published", basket, "nothing"), "it has published: nothing"),
    ):
        result = cli("runs", *words)
        assert result.exit_code == FAILED
        assert said in result.stderr
        assert "Traceback" not in result.stderr


def test_a_closed_run_refuses(cli: Cli, basket: str) -> None:
    cli("runs", "terminate", basket)
    for words in (("signal", basket, "limit", "1"), ("update", basket, "put", '"x"')):
        result = cli("runs", *words, "--json")
        assert result.exit_code == FAILED
        assert json.loads(result.stderr)["error"]["type"] == "RunClosed"


def test_no_answer_in_time(cli: Cli) -> None:
    cli("runs", "start", "basket", "--id", "b")
    result = cli("runs", "update", "b", "put", '"x"', "--timeout", "0.05")
    assert result.exit_code == FAILED
    assert "has not answered update 'put' within 0.05 s: it is pending: no live worker" in result.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("signal", "nobody", "limit", "1"), NOT_FOUND),
        (("update", "nobody", "put"), NOT_FOUND),
        (("published", "nobody"), NOT_FOUND),
        (("query", "--app", SHOP, "nobody", "size"), NOT_FOUND),
        (("signal", "b", "limit", "{"), USAGE),
        (("update", "b", "put", "tea"), USAGE),
        (("query", "--app", "no.such.module", "b", "size"), USAGE),
        (("query", "--app", "tests.cli.shop:app", "b", "size"), USAGE),
        (("signal", "b"), USAGE),
    ],
)
def test_bad_input_is_told_by_the_exit_code(cli: Cli, words: tuple[str, ...], code: int) -> None:
    cli("runs", "start", "basket", "--id", "b")
    result = cli("runs", *words)
    assert result.exit_code == code, result.stderr
    assert result.stderr
