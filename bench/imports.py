"""What `import batuta` costs, by `-X importtime`."""

import os
import subprocess
import sys
from typing import Final

from bench.child import Figures

LINE: Final = "import time:"


def import_time() -> Figures:
    """Milliseconds of `import batuta` in a new process, with its bytecode cached as for every user."""
    return {"import_ms": _cumulative_us("batuta") / 1000}


def _cumulative_us(module: str) -> int:
    # A read-only or bytecode-free environment would measure the compiler instead.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    report = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    for line in report.splitlines():
        _, cumulative, name = line.removeprefix(LINE).split("|")
        if name.strip() == module and name.startswith(f" {module}"):
            return int(cumulative)
    raise ValueError(f"-X importtime did not report {module}")
