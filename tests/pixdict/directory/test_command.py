"""The command `pixdict directory`."""

import signal
from pathlib import Path

import httpcore2
import pytest
from click.testing import CliRunner
from msgspec import json

from batuta.clock import as_datetime
from pixdict.cli import root
from pixdict.dict import signatures
from tests.pixdict.directory.kit import START
from tests.pixdict.directory.test_durability import running


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "cert.pem"
    path.write_bytes(signatures.self_signed("11111111", as_datetime(START)).pem()[1])
    return path


def test_it_serves_what_its_options_say_and_ends_in_order(tmp_path: Path, certificate: Path) -> None:
    options = ["--participant", "11111111:H", "--certificate", f"11111111={certificate}", "--signature", "verify"]
    with running(tmp_path / "d.db", *options, "--refill", "continuous", "--check-digits") as (url, process):
        state = json.decode(httpcore2.request("GET", f"{url}/admin/v1/state").content)
        assert (state["signature"], list(state["participants"])) == ("verify", ["11111111"])
        assert state["participants"]["11111111"]["category"] == "H"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--participant", "12345678"], "give it as 12345678:A"),
        (["--participant", "123:A"], "not an ISPB"),
        (["--participant", "12345678:Z"], "choose one of A, B"),
        (["--certificate", "12345678"], "give it as 12345678=cert.pem"),
        (["--certificate", "99999999=x"], "no such --participant"),
        (["--certificate", "12345678=/nowhere/cert.pem"], "cannot read /nowhere/cert.pem"),
        (["--signature", "maybe"], "is not one of"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen at 192.0.2.1"),
        (["--port", "65536"], "65536 is not in the range"),
        (["--path", "/nowhere/d.db"], "cannot use the file /nowhere/d.db: unable to open"),
        (["--path", __file__], "is not a database"),
    ],
)
def test_wrong_options_are_explained(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(root, ["directory", "--path", str(tmp_path / "d.db"), *arguments])
    assert result.exit_code != 0
    assert message in result.output


def test_help_tells_the_command() -> None:
    assert "directory" in CliRunner().invoke(root, ["--help"]).output
