"""A real standalone Pulsar for tests, from jars of Maven Central: one Java process with a small heap.

`BATUTA_TEST_PULSAR_URL` uses a server of yours instead (tests that stop the broker then fail). The jars are fetched
once, into the cache folder of the user. It never skips: where nothing can be started it raises ServerUnavailable.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

from batuta.testing.postgres_binaries import ServerUnavailable
from batuta.testing.servers import free_ports

URL_VARIABLE = "BATUTA_TEST_PULSAR_URL"
_POM = Path(__file__).with_name("pom.xml")
_PATIENCE_S = 240.0
_OPENS = (
    "java.base/jdk.internal.loader",
    "java.base/java.lang",
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_JAVA = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dio.netty.tryReflectionSetAccessible=true",
)
_CONFIG = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "loadBalancerEnabled": "false",
    "maxMessageSize": "1048576",
    "numIOThreads": "2",
    "numHttpServerThreads": "4",
}


def jars() -> Path:
    """A folder with the broker and all that it needs. Raises ServerUnavailable."""
    version = re.findall(r"<version>([\d.]+)</version>", _POM.read_text())[-1]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batuta"
    folder = cache / f"pulsar-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "pulsar.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    if not shutil.which("mvn"):
        raise ServerUnavailable(f"no mvn to fetch Pulsar with: install maven, or set {URL_VARIABLE}")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        shutil.copy(_POM, work)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        fetching = ["mvn", "-B", "-q", *goal]
        done = subprocess.run(fetching, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerUnavailable(f"the jars of Pulsar cannot be fetched:\n{(done.stdout + done.stderr)[-2000:]}")
        (Path(work) / "jars").rename(folder)


class PulsarServer:
    """One broker, with its data in a folder of its own. It can be stopped, and started again with what it had."""

    def __init__(self, **settings: str) -> None:
        self._jars = jars()
        self._folder = Path(tempfile.mkdtemp(prefix="batuta-pulsar-"))
        ports = free_ports()
        self.port, self.admin_port, bookie = next(ports), next(ports), next(ports)
        self._bookie = bookie
        values = _CONFIG | settings | {"brokerServicePort": str(self.port), "webServicePort": str(self.admin_port)}
        (self._folder / "standalone.conf").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        self.start()

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def start(self) -> None:
        """Raises ServerUnavailable with the end of its log."""
        opens = [text for name in _OPENS for text in ("--add-opens", f"{name}=ALL-UNNAMED")]
        options = ["-c", "standalone.conf", "-nfw", "-nss", "--metadata-dir", "data/metadata"]
        options += ["--bookkeeper-dir", "data/bookkeeper", "--bookkeeper-port", str(self._bookie)]
        main = "org.apache.pulsar.PulsarStandaloneStarter"
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *_JAVA, *opens, "-cp", f"{self._jars}/*", main, *options],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        end = time.monotonic() + _PATIENCE_S
        while "messaging service is ready" not in (said := self._log()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise ServerUnavailable(f"Pulsar did not start; its log says:\n{said[-3000:]}")
            time.sleep(0.1)
        self._wait_for_namespace(end)

    def _wait_for_namespace(self, end: float) -> None:
        while True:
            try:
                with urlopen(f"{self.admin_url}/admin/v2/namespaces/public", timeout=5) as answer:
                    if b"public/default" in answer.read():
                        return
            except OSError:
                pass
            if time.monotonic() > end:
                raise ServerUnavailable(f"Pulsar has no namespace; its log says:\n{self._log()[-3000:]}")
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A request to its web service."""
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.admin_url}/admin/v2/{path}", data=body, headers=headers, method=method)
        with urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_PATIENCE_S)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")
