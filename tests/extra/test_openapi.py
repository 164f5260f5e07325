"""Requests made from the OpenAPI document by schemathesis: no answer outside of it, and no error of the server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import batuta
from tests.server.shop import APP

pytestmark = [pytest.mark.extra, pytest.mark.timeout(900)]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/api.db"


async def furnish(url: str, scope: str | None) -> str:
    """Something of each kind, under the id `a`. Returns a key, if one is wanted."""
    async with batuta.connect(url) as client:
        async with client.worker(workflows=APP.workflows, activities=APP.activities, jobs=APP.jobs):
            for number in range(3):
                await client.start("order", number - 1, id=f"order-{number}")
            await client.start("basket", id="a")
            failed = await client.enqueue("send", "nobody", id="dead")
            with pytest.raises(batuta.RunFailed):
                await failed.result()
        await client.schedules.create(batuta.Schedule("a", batuta.every(3600), "order", 1))
        await client.limit_queue("a", concurrency=2)
        return (await client.api_keys.create("ann", scope)).key if scope else ""


@pytest.fixture
def served(url: str) -> Iterator[str]:
    """Where a server of that database listens."""
    command = [sys.executable, "-m", "batuta", "server", "--url", url, "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1", "BATUTA_SERVER_RATE": "100000/min"},
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^/ ]+", process.stdout.readline())
            assert found is not None
            yield found[0]
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize("known_ids", [False, True], ids=["any-id", "known-ids"])
@pytest.mark.parametrize("scope", [None, "viewer", "admin"], ids=["no-key", "viewer", "admin"])
async def test_no_answer_is_outside_of_the_description(
    url: str, request: pytest.FixtureRequest, tmp_path: Path, scope: str | None, known_ids: bool
) -> None:
    key = await furnish(url, scope)
    served = request.getfixturevalue("served")
    config = tmp_path / "schemathesis.toml"
    ids = '"path.id" = "a"\n"path.name" = "a"\n' if known_ids else ""
    config.write_text(f'[parameters]\n"query.namespace" = "default"\n{ids}')  # other ones would only be refused
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{served}/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", "10", "--seed", "7", "--generation-deterministic"]
    command += ["--phases", "examples,coverage,fuzzing", "--generation-with-security-parameters", "false"]
    command += ["--exclude-path", "/api/v1/events", "--suppress-health-check", "all", "--request-timeout", "60"]
    for revoking in ("delete_api_keys_id", "post_api_keys_id_rotate"):  # it finds its own key in the list, and uses it
        command += ["--exclude-operation-id", revoking]
    if key:
        command += ["-H", f"Authorization: Bearer {key}"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    assert said.returncode == 0, said.stdout[-8_000:] + said.stderr[-2_000:]
    tested = re.search(r"Tested: (\d+)", said.stdout)
    assert tested is not None
    assert int(tested[1]) > 80
    rejected = re.search(r"(\d+) operations mostly returned 429", said.stdout)
    assert rejected is None, said.stdout[-4_000:]
