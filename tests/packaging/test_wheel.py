"""The wheel: it has the dashboard, and `batuta dev` works from it in an empty environment."""

import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(directory),
    ]
    subprocess.run([*command, str(ROOT)], check=True, timeout=300)
    [built] = directory.glob("batuta-*.whl")
    return built


@pytest.mark.timeout(300)
def test_the_wheel_has_the_dashboard_and_the_sql_of_the_stores(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        page = opened.read("batuta/server/static/index.html").decode()
    wanted = set(re.findall(r"(?:src|href)=\"(?:\./|__BATUTA_BASE__)?(assets/[^\"]+)\"", page))
    assert any(name.endswith(".js") for name in wanted)
    assert {f"batuta/server/static/{name}" for name in wanted} <= names
    shipped = [path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.sql")]
    assert set(shipped) <= names
    assert {"batuta/py.typed", "pixdict/py.typed", "pixdict/dict/messages.py"} <= names


@pytest.mark.extra
@pytest.mark.timeout(600)
def test_batuta_dev_works_from_the_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    programs = tmp_path / "env" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", f"{wheel}[server]"], check=True, timeout=300)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BATUTA"))}
    command = [str(programs / "batuta"), "dev", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=plain, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"http://[\d.:]+/", line) for line in process.stdout)))
            with urllib.request.urlopen(found[0]) as page:
                assert b"<script" in page.read()
            with urllib.request.urlopen(f"{found[0]}api/v1/overview") as overview:
                assert overview.status == 200
        finally:
            process.terminate()
            process.wait(60)
