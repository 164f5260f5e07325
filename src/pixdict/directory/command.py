"""What `pixdict directory` does."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import click
import uvicorn
from cryptography import x509

from pixdict.dict.buckets import Refill
from pixdict.dict.tls import Tls
from pixdict.directory.server import Directory, listen
from pixdict.directory.settings import EXAMPLES, DirectorySettings, Participant, SignatureMode
from pixdict.redaction import guard_logs


def run(
    host: str,
    port: int,
    path: str,
    participants: tuple[str, ...],
    signature: SignatureMode,
    certificates: tuple[str, ...],
    refill: str,
    check_digits: bool,
    tls: Tls | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    guard_logs()
    known = _participants(participants, certificates)
    settings = DirectorySettings(
        participants=known, signature=signature, refill=Refill(refill), check_digits=check_digits, tls=tls
    )
    try:
        directory = Directory(settings, path=path)
    except sqlite3.Error as error:
        raise click.ClickException(f"cannot use the file {path}: {error}") from None
    try:
        listening = listen(host, port)
    except OSError as error:
        directory.close()
        raise click.ClickException(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
    with listening:
        where = f"{directory.scheme}://{host}:{listening.getsockname()[1]}"
        click.echo(f"directory listens at {where}/api/v2/ (knobs: {where}/admin/v1/state); Ctrl-C ends it")
        uvicorn.Server(directory.server_config()).run(sockets=[listening])
    directory.close()


def _participants(given: tuple[str, ...], certificates: tuple[str, ...]) -> dict[str, Participant]:
    pems = dict(_pair(one, "=", "--certificate", "12345678=cert.pem") for one in certificates)
    known = dict(_pair(one, ":", "--participant", "12345678:A") for one in given) or dict.fromkeys(EXAMPLES, "A")
    try:
        found = {
            ispb: Participant(category=category, certificate=_certificate(pems.pop(ispb, None)))
            for ispb, category in known.items()
        }
        DirectorySettings(participants=found)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if pems:
        raise click.UsageError(f"--certificate of {', '.join(pems)}: no such --participant")
    return found


def tls_of(key: str | None, certificate: str | None, trusted: str | None) -> Tls | None:
    """What the options `--tls-...` say. Raises UsageError."""
    if key is None and certificate is None and trusted is None:
        return None
    if key is None or certificate is None or trusted is None:
        raise click.UsageError("--tls-key, --tls-certificate and --tls-trusted belong together: give all three or none")
    found = Tls(key=key, certificate=certificate, trusted=trusted)
    try:
        found.client_context()
    except OSError as error:  # also of ssl
        raise click.UsageError(f"--tls-key, --tls-certificate, --tls-trusted: {error}") from None
    return found


def _pair(text: str, mark: str, option: str, example: str) -> tuple[str, str]:
    first, found, second = text.partition(mark)
    if not found or not first or not second:
        raise click.UsageError(f"{option} {text!r}: give it as {example}")
    return first, second


def _certificate(path: str | None) -> x509.Certificate | None:
    if path is None:
        return None
    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes())
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
