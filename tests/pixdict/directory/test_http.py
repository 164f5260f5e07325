"""The directory over HTTP: faults on purpose, knobs, and clients that behave badly."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpcore2
import pytest
from msgspec import json

from batuta.clock import ManualClock
from pixdict.dict import messages, signatures, xml
from pixdict.dict.operations import OPERATIONS
from pixdict.directory import Directory, DirectorySettings
from tests.pixdict.directory import openapi
from tests.pixdict.directory.kit import CPF, EMAIL, PHONE, START, A, B, account, create

ENTRIES = "/api/v2/entries/"
DROPPED = (httpcore2.NetworkError, httpcore2.ProtocolError)


class Http:
    """Asks a directory over a real connection. Answers of its API are checked against the official file."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.pool = httpcore2.AsyncConnectionPool()

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> httpcore2.Response:
        sent: dict[bytes | str, bytes | str] = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.pool.request(method, self.directory.url + path, headers=sent, content=body)

    async def create(self, message: messages.CreateEntryRequest | None = None) -> httpcore2.Response:
        answer = await self.ask("POST", ENTRIES, xml.to_bytes(message or create()))
        openapi.check("createEntry", answer.status, header(answer, "content-type"), answer.content)
        return answer

    async def knob(self, method: str, name: str, value: Any = None) -> Any:
        body = json.encode(value) if value is not None else b""
        answer = await self.ask(method, f"/admin/v1/{name}", body, Content_Type="application/json")
        assert answer.status == 200, answer.content
        return json.decode(answer.content)

    @property
    def entries(self) -> int:
        return self.directory.storage.counts()["entries"]

    @property
    def tokens(self) -> int:
        return self.directory.service.balance("ENTRIES_WRITE", A)


def header(answer: httpcore2.Response, name: str) -> str:
    return {key.decode().lower(): value.decode() for key, value in answer.headers}.get(name, "")


def problem(answer: httpcore2.Response) -> str:
    root = xml.parse(answer.content)
    return root.findtext("{urn:ietf:rfc:7807}type", "").rpartition("/")[2]


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    settings = DirectorySettings(max_body=20_000, body_timeout=0.3)
    async with Directory.serve(settings, clock=ManualClock(START)) as directory:
        asking = Http(directory)
        yield asking
        await asking.pool.aclose()


async def test_a_key_goes_in_and_comes_out(http: Http) -> None:
    assert (await http.create()).status == 201
    found = await http.ask(
        "GET",
        OPERATIONS["getEntry"].path_for(Key=PHONE),
        PI_RequestingParticipant=B,
        PI_PayerId=CPF,
        PI_EndToEndId="E1",
    )
    assert (found.status, header(found, "cache-control")) == (200, "no-store")
    assert header(found, "keep-alive") == "timeout=60"
    openapi.check("getEntry", 200, header(found, "content-type"), found.content)


async def test_answers_are_compressed_for_those_who_take_it(http: Http) -> None:
    answer = await http.ask("GET", "/api/v2/policies/", PI_RequestingParticipant=A, Accept_Encoding="gzip")
    assert header(answer, "content-encoding") == "gzip"
    openapi.check("listPolicies", 200, "application/xml", gzip.decompress(answer.content))


# Clients that behave badly

BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><CreateEntryRequest>&b;</CreateEntryRequest>'
OUTSIDE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "http://127.0.0.1:1/">]><CreateEntryRequest>&a;</CreateEntryRequest>'
UNKNOWN = xml.to_bytes(create()).replace(b"<Reason>", b"<Extra/><Reason>")


@pytest.mark.parametrize("body", [b"", b"{}", b"<a", BOMB, OUTSIDE, b"<Other/>", UNKNOWN, b"\x00" * 100])
async def test_documents_that_cannot_be_read_change_nothing(http: Http, body: bytes) -> None:
    answer = await http.ask("POST", ENTRIES, body)
    openapi.check("createEntry", answer.status, header(answer, "content-type"), answer.content)
    assert (answer.status, problem(answer)) == (400, "BadRequest")
    assert http.entries == 0


async def test_text_that_xml_cannot_hold_and_too_many_parameters_are_refused(http: Http) -> None:
    for path in (
        "/api/v2/entries/%00abc",
        "/api/v2/entries/%ED%A0%80",
        "/api/v2/claims/?Participant=12345678&Status=%01",
        "/api/v2/policies/?" + "&".join(f"p{number}=1" for number in range(101)),
    ):
        answer = await http.ask("GET", path, PI_RequestingParticipant=A, PI_PayerId=CPF, PI_EndToEndId="E1")
        assert (answer.status, problem(answer)) == (400, "BadRequest"), path
    assert (await http.create()).status == 201


async def test_a_huge_request_is_refused_by_its_length_and_by_its_bytes(http: Http) -> None:
    answer = await http.ask("POST", ENTRIES, b"x" * 20_001)
    assert (answer.status, problem(answer)) == (400, "BadRequest")
    assert "at most 20000 are taken" in answer.content.decode()
    answer = await http.ask("POST", ENTRIES, b"x" * 10_000_000)
    assert (answer.status, problem(answer)) == (400, "BadRequest")
    head = f"POST {ENTRIES} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    assert b"more than 20000 bytes" in await raw(http, head + chunk * 2)


async def test_a_slow_request_is_given_up(http: Http) -> None:
    head = f"POST {ENTRIES} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n<".encode()
    answer = await raw(http, head)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"did not arrive within 0.3 s" in answer
    assert (await http.create()).status == 201, "others are served"


async def raw(http: Http, sent: bytes) -> bytes:
    """What comes back to some bytes, until the directory closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(http.directory.url.rpartition(":")[2]))
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_a_client_that_goes_away_leaves_nothing_behind(http: Http) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", int(http.directory.url.rpartition(":")[2]))
    writer.write(f"POST {ENTRIES} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n<".encode())
    await writer.drain()
    writer.close()
    assert (await http.create()).status == 201
    assert http.entries == 1


async def test_compressed_requests_and_unknown_paths_are_refused(http: Http) -> None:
    answer = await http.ask("POST", ENTRIES, b"x", Content_Encoding="gzip")
    assert (answer.status, problem(answer)) == (400, "BadRequest")
    assert (await http.ask("GET", "/api/v2/nothing")).status == 404
    assert (await http.ask("GET", "/")).status == 404


async def test_a_mistake_of_our_own_is_a_500_that_costs_nothing(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(http.directory.storage, "put_entry", broken)
    answer = await http.create()
    assert (answer.status, problem(answer)) == (500, "InternalServerError")
    assert http.tokens == 36_000


# Faults


@pytest.mark.parametrize(
    ("status", "name", "left"),
    [(500, "InternalServerError", 36_000), (503, "ServiceUnavailable", 35_999), (409, "ResourceConflict", 35_999)],
)
async def test_a_status_on_purpose_does_nothing_and_costs_what_it_says(
    http: Http, status: int, name: str, left: int
) -> None:
    http.directory.faults.add("status", operation="createEntry", status=status, retry_after=7)
    answer = await http.create()
    assert (answer.status, problem(answer), header(answer, "retry-after")) == (status, name, "7")
    assert (http.entries, http.tokens) == (0, left)
    assert (await http.create()).status == 201, "once"


async def test_a_dropped_request_is_not_done(http: Http) -> None:
    http.directory.faults.add("drop", operation="createEntry")
    with pytest.raises(DROPPED):
        await http.create()
    assert (http.entries, http.tokens) == (0, 36_000)


async def test_a_lost_answer_is_done_and_its_repeat_gets_the_answer(http: Http) -> None:
    http.directory.faults.add("lost_answer", operation="createEntry")
    message = create()
    with pytest.raises(DROPPED):
        await http.create(message)
    assert (http.entries, http.tokens) == (1, 35_999)
    assert (await http.create(message)).status == 201
    assert http.entries == 1


async def test_a_request_without_an_answer_ends_when_the_client_gives_up(http: Http) -> None:
    http.directory.faults.add("timeout", operation="createEntry")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await http.create()
    http.directory.faults.add("timeout", operation="createEntry", seconds=0.05)
    with pytest.raises(DROPPED):
        await http.create()
    assert http.entries == 0


async def test_a_late_answer_is_an_answer(http: Http) -> None:
    http.directory.faults.add("latency", seconds=0.05)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await http.create()).status == 201
    assert loop.time() - began >= 0.05


async def test_faults_happen_as_often_as_they_say_and_to_their_operation_alone(http: Http) -> None:
    faults = http.directory.faults
    faults.add("status", operation="getPolicy", times=2)
    faults.add("status", operation="createEntry", times=None, status=500)
    path = "/api/v2/policies/KEYS_CHECK"
    assert [(await http.ask("GET", path, PI_RequestingParticipant=A)).status for _ in range(3)] == [503, 503, 200]
    assert [(await http.create()).status for _ in range(3)] == [500, 500, 500]
    assert len(faults.all()) == 1
    faults.clear()
    assert (await http.create()).status == 201


@pytest.mark.parametrize(
    "options",
    [
        {"operation": "createBitcoin"},
        {"status": 418},
        {"times": 0},
        {"seconds": -1},
        {"seconds": 1e9},
        {"retry_after": -1},
    ],
)
def test_faults_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
        Directory().faults.add("status", **options)
    with pytest.raises(ValueError, match="explode"):
        Directory().faults.add("explode")


# Knobs


async def test_everything_can_be_set_over_http(http: Http) -> None:
    await http.create()
    await http.ask(
        "GET",
        OPERATIONS["getEntry"].path_for(Key=PHONE),
        PI_RequestingParticipant=B,
        PI_PayerId=CPF,
        PI_EndToEndId="E1",
    )
    assert await http.knob("POST", "payments", {"end_to_end_id": "E1", "payer_id": CPF}) == {"credited_lookups": 1}
    await http.knob("PUT", "balances", {"policy": "ENTRIES_WRITE", "participant": A, "tokens": 0})
    assert (await http.create()).status == 429
    moved = await http.knob("POST", "time", {"seconds": 60})
    assert moved["now"] == "2026-01-02T00:01:00+00:00"
    await http.knob("PUT", f"participants/{'99999999'}", {"category": "H", "direct": A})
    await http.knob("POST", "faults", {"kind": "status", "operation": "getPolicy"})
    state = await http.knob("GET", "state")
    assert state["participants"]["99999999"]["balances"]["ENTRIES_READ_PARTICIPANT_ANTISCAN"] == 50
    assert state["participants"][A]["balances"]["ENTRIES_WRITE"] == 1_200
    assert state["counts"]["entries"] == 1
    assert [one["operation"] for one in state["requests"]] == ["createEntry", "getEntry", "createEntry"]
    assert state["requests"][0]["problem"] == "RateLimited"
    assert await http.knob("GET", "faults") == state["faults"]
    assert await http.knob("DELETE", "faults") == []


@pytest.mark.parametrize(
    ("method", "name", "body", "status"),
    [
        ("POST", "time", b'{"seconds": -1}', 400),
        ("POST", "time", b'{"seconds": 1e12}', 400),
        ("POST", "time", b'{"second": 1}', 400),
        ("POST", "time", b"{", 400),
        ("POST", "faults", b'{"kind": "explode"}', 400),
        ("POST", "faults", b'{"kind": "drop", "operation": "x"}', 400),
        ("PUT", "balances", b'{"policy": "X", "participant": "12345678", "tokens": 1}', 400),
        ("PUT", "participants/1", b"{}", 400),
        ("PUT", "participants/99999999", b'{"category": "Z"}', 400),
        ("PUT", "participants/99999999", b'{"direct": "Z"}', 400),
        ("GET", "nothing", b"", 404),
        ("DELETE", "time", b"", 404),
    ],
)
async def test_knobs_say_what_is_wrong_and_change_nothing(
    http: Http, method: str, name: str, body: bytes, status: int
) -> None:
    before = await http.knob("GET", "state")
    answer = await http.ask(method, f"/admin/v1/{name}", body, Content_Type="application/json")
    assert answer.status == status
    assert json.decode(answer.content)["error"]
    assert await http.knob("GET", "state") == before


async def test_a_page_of_a_browser_cannot_turn_knobs(http: Http) -> None:
    for kind, status in (("text/plain", 415), ("application/json; charset=utf-8", 200)):
        answer = await http.ask("POST", "/admin/v1/time", b'{"seconds": 1}', Content_Type=kind)
        assert answer.status == status


# Signatures


async def test_answers_are_signed_and_a_wrong_signature_can_be_made(http: Http) -> None:
    async with Directory.serve(DirectorySettings(signature="present")) as directory:
        signed = Http(directory)
        answer = await signed.create()
        assert (answer.status, problem(answer)) == (400, "RequestSignatureInvalid")
        assert directory.certificate is not None
        signatures.verify(xml.parse(answer.content), directory.certificate)
        directory.faults.add("wrong_signature", times=1)
        answer = await signed.ask("GET", "/api/v2/policies/KEYS_CHECK", PI_RequestingParticipant=A)
        with pytest.raises(signatures.InvalidSignature):
            signatures.verify(xml.parse(answer.content), directory.certificate)
        await signed.pool.aclose()


async def test_without_signatures_a_wrong_one_is_another_id(http: Http) -> None:
    http.directory.faults.add("wrong_signature")
    assert http.directory.certificate is None
    assert (await http.create()).status == 201
    http.directory.faults.add("wrong_signature")
    assert (await http.create()).status == 400


async def test_a_second_directory_cannot_take_the_same_port(http: Http) -> None:
    with pytest.raises(OSError):
        async with Directory.serve(port=int(http.directory.url.rpartition(":")[2])):
            pass


async def test_requests_at_the_same_time_are_all_answered(http: Http) -> None:
    asked = [create(f"a{n}@b.com", "EMAIL", at=account(number=str(n))) for n in range(50)]
    answers = await asyncio.gather(*map(http.create, asked))
    assert {answer.status for answer in answers} == {201}
    assert (http.entries, http.tokens) == (50, 35_950)
    assert EMAIL not in {message.entry.key for message in asked}
