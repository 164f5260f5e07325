"""Nothing that strangers wrote reaches a terminal or a log as it is."""

import ast
import re

from batuta.printable import LOGGERS
from pixdict.redaction import LOGGERS as LOGGERS_OF_PIXDICT
from tests.architecture.source import ROOT, parse, python_files

SAFE = {"paragraph", "printable", "printable_json", "shown_json", "shown_text"}


def test_commands_print_through_what_writes_out_control_characters() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in python_files("src/batuta/cli")
        for call in ast.walk(parse(path))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"click.echo", "print"} and not _is_safe(call)
    ]
    assert not found, f"use batuta.cli.common.redaction.say: {found}"


def _is_safe(call: ast.Call) -> bool:
    text = call.args[0]
    inner = {ast.unparse(part.func) for part in ast.walk(text) if isinstance(part, ast.Call)}
    return isinstance(text, ast.Constant) or bool(inner & SAFE)


def test_every_logger_of_the_package_writes_out_control_characters() -> None:
    for package, known in (("batuta", LOGGERS), ("pixdict", LOGGERS_OF_PIXDICT)):
        sources = "".join(path.read_text() for path in python_files(f"src/{package}"))
        assert set(re.findall(rf'getLogger\("({package}[^"]*)"\)', sources)) == set(known)
