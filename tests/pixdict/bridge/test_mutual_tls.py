"""The Bridge and the simulator over TLS, where both show a certificate."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpcore2
import pytest
from click.testing import CliRunner

from batuta import connect
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.cli import root
from pixdict.dict.signatures import self_signed
from pixdict.dict.tls import Tls
from pixdict.directory import Directory, DirectorySettings, Participant
from pixdict.errors import BridgeUnavailable, InvalidArgument, Refused
from tests.pixdict.bridge.kit import ENTRY, ISPB, REQUEST

INDIRECT, OTHER, STRANGER = "44444444", "87654321", "99999999"


class Files:
    """Certificates of participants and of the directory. That of the stranger is trusted by nobody."""

    def __init__(self, folder: Path) -> None:
        self._folder, now = folder, datetime.now(UTC)
        made = {name: self_signed(name, now, hosts=hosts) for name, hosts in {
            "directory": ["127.0.0.1"], "elsewhere": ["192.0.2.1"], ISPB: [], OTHER: [], STRANGER: []
        }.items()}  # fmt: skip
        for name, signer in made.items():
            key, certificate = signer.pem()
            (folder / f"{name}.key").write_bytes(key)
            (folder / f"{name}.pem").write_bytes(certificate)
        self._join("participants", ISPB, OTHER)
        self._join("directories", "directory", "elsewhere")

    def _join(self, name: str, *parts: str) -> None:
        text = b"".join((self._folder / f"{part}.pem").read_bytes() for part in parts)
        (self._folder / f"{name}.pem").write_bytes(text)

    def tls(self, name: str, trusted: str = "directories") -> Tls:
        files = {"key": f"{name}.key", "certificate": f"{name}.pem", "trusted": f"{trusted}.pem"}
        return Tls(**{field: str(self._folder / file) for field, file in files.items()})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def asking(
    files: Files, shown: Tls | None, *, participant: str = ISPB, server: str = "directory"
) -> AsyncIterator[BridgeClient]:
    """A client of a Bridge that shows that certificate."""
    known = {one: Participant() for one in (ISPB, OTHER)} | {INDIRECT: Participant(direct=ISPB)}
    settings = DirectorySettings(participants=known, tls=files.tls(server, "participants"))
    async with Directory.serve(settings) as directory, connect("memory://") as batuta:
        assert directory.url.startswith("https://")
        told = BridgeSettings(directory=directory.url, participant=participant, attempts=1, tls=shown)
        async with serve(told, batuta, grace=0.0) as bridge, BridgeClient(bridge.address) as client:
            yield client


async def test_a_participant_that_shows_its_certificate_is_served(files: Files) -> None:
    async with asking(files, files.tls(ISPB)) as client:
        made = await client.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST)
        assert made.entry.key == ENTRY.key
        assert await client.check_keys([made.entry.key]) == {made.entry.key: True}


async def test_a_direct_participant_asks_only_for_its_indirect_ones(files: Files) -> None:
    async with asking(files, files.tls(ISPB), participant=INDIRECT) as client:
        assert len(await client.list_policies()) == 29
    async with asking(files, files.tls(OTHER), participant=INDIRECT) as client:
        with pytest.raises(Refused, match=f"Forbidden: the certificate of the connection is that of '{OTHER}'"):
            await client.list_policies()
    async with asking(files, files.tls(OTHER)) as client:
        with pytest.raises(Refused, match="Forbidden"):
            await client.list_policies()


async def test_those_without_a_trusted_certificate_are_not_let_in(files: Files) -> None:
    async with asking(files, files.tls(STRANGER)) as client:
        with pytest.raises(BridgeUnavailable, match="directory_unreachable"):
            await client.list_policies()
    settings = DirectorySettings(tls=files.tls("directory", "participants"))
    without = ssl.create_default_context(cafile=files.tls(ISPB).trusted)
    async with Directory.serve(settings) as directory, httpcore2.AsyncConnectionPool(ssl_context=without) as http:
        with pytest.raises((httpcore2.NetworkError, httpcore2.ProtocolError)):
            await http.request("GET", f"{directory.url}/admin/v1/state")


@pytest.mark.parametrize("server", [STRANGER, "elsewhere"])
async def test_a_directory_that_is_not_trusted_or_of_another_name_is_told_nothing(files: Files, server: str) -> None:
    async with asking(files, files.tls(ISPB), server=server) as client:
        with pytest.raises(BridgeUnavailable, match="directory_unreachable"):
            await client.list_policies()


def test_a_certificate_is_not_shown_without_tls(files: Files) -> None:
    with pytest.raises(InvalidArgument, match="must begin with https"):
        BridgeSettings(directory="http://127.0.0.1:1", participant=ISPB, tls=files.tls(ISPB))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls-key", "a.pem"], "belong together"),
        (["--tls-key", "a.pem", "--tls-certificate", "b.pem", "--tls-trusted", "c.pem"], "No such file"),
    ],
)
@pytest.mark.parametrize("command", [["directory", "--port", "0"], ["serve", "--role", "bridge"]])
def test_wrong_options_are_explained(tmp_path: Path, command: list[str], arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(root, [*command, *arguments])
    assert result.exit_code == 2
    assert said in result.output
