"""The static rules: every planted fault is found where it is, and nothing else is."""

import ast
import asyncio
import re
from pathlib import Path

import pytest

import batuta
from batuta.check import RULES, Check, Finding

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLANTED, HELPERS, CLEAN = HERE / "planted.py", HERE / "planted_helpers.py", HERE / "clean.py"
EXPECTED = re.compile(r"# expect: (W\d\d\d)")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def expected(path: Path) -> set[tuple[int, str]]:
    lines = enumerate(path.read_text().splitlines(), start=1)
    return {(number, match[1]) for number, line in lines if (match := EXPECTED.search(line))}


def found(path: Path, findings: list[Finding]) -> set[tuple[int, str]]:
    return {(one.line, one.code) for one in findings if one.file == str(path.relative_to(ROOT))}


def check(tmp_path: Path, source: str, name: str = "flow.py") -> list[Finding]:
    (tmp_path / name).write_text("from batuta import activity, workflow\nimport asyncio, time, random, os\n" + source)
    return Check([str(tmp_path / name)]).findings()


def codes(findings: list[Finding]) -> list[str]:
    return [one.code for one in findings]


def test_every_planted_fault_is_found_on_its_line_and_nothing_else() -> None:
    findings = Check([str(PLANTED)]).findings()
    assert len(expected(PLANTED)) >= 40
    assert found(PLANTED, findings) == expected(PLANTED)
    assert found(HELPERS, findings) == expected(HELPERS)


def test_every_rule_about_code_has_a_planted_fault() -> None:
    planted = {code for _, code in expected(PLANTED)}
    assert {code for code in RULES if code[1] not in "06"} == planted


def test_the_page_tells_every_rule_and_its_fix() -> None:
    page = (ROOT / "docs" / "concepts" / "check.md").read_text()
    wanted = [
        f"| {code} | {'warning' if rule.warning else ''} | {rule.title} | {rule.fix} |" for code, rule in RULES.items()
    ]
    assert not [row for row in wanted if row.replace("|  |", "| |") not in page]


def test_a_module_is_found_by_its_name_without_being_imported() -> None:
    findings = Check(["tests.check.planted"]).findings()
    assert found(PLANTED, findings) == expected(PLANTED)


def test_a_finding_tells_where_it_is_what_it_is_and_what_to_do() -> None:
    findings = Check([str(PLANTED)]).findings()
    helper = next(one for one in findings if one.file.endswith("planted_helpers.py"))
    assert str(helper) == (
        f"tests/check/planted_helpers.py:{helper.line}:12: W101 time.time(): reads the clock or the time zone of the "
        f"machine (deeper, called by workflow goes_by_chance)"
    )
    assert helper.rule.fix == "use batuta.now(), and name the time zone"


def test_nothing_is_found_in_what_only_looks_like_a_fault() -> None:
    checked = Check([str(CLEAN)])
    assert not [str(one) for one in checked.findings()]
    assert len(checked.workflows) == 3


def test_nothing_is_found_in_the_examples_and_the_demo() -> None:
    checked = Check(["examples", "batuta.cli.demo"], [str(ROOT / "src")])
    assert not [str(one) for one in checked.findings()]
    assert len(checked.workflows) > 10


@pytest.mark.parametrize("package", [asyncio, batuta], ids=lambda package: package.__name__)
def test_any_module_can_be_checked(package: object) -> None:
    folder = Path(getattr(package, "__file__", "")).parent
    checked = Check([str(folder)])
    assert checked.files == len(list(folder.rglob("*.py")))
    assert "W001" not in codes(checked.findings())


@pytest.mark.parametrize("package", [asyncio, batuta.check], ids=lambda package: package.__name__)
def test_any_function_can_be_checked_as_if_it_were_a_workflow(package: object, tmp_path: Path) -> None:
    for path in Path(getattr(package, "__file__", "")).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.decorator_list = [ast.Name("workflow", ast.Load())]
        tree.body.append(ast.parse("from batuta import workflow").body[0])
        (tmp_path / path.name).write_text(ast.unparse(tree))
    checked = Check([str(tmp_path)])
    assert "W001" not in codes(checked.findings())
    assert len(checked.workflows) > 100


def test_a_comment_silences_one_rule_on_one_line(tmp_path: Path) -> None:
    body = "@workflow\nasync def flow():\n    time.time()  # batuta: ignore[{}]\n    time.time()\n"
    assert [one.line for one in check(tmp_path, body.format("W101"))] == [6]
    assert [one.line for one in check(tmp_path, body.format("W102, W101"))] == [6]
    assert [one.line for one in check(tmp_path, body.format("W102"))] == [5, 6]


def test_a_file_that_is_no_python_is_a_finding(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, "def oops(:\n")
    assert (finding.code, finding.line) == ("W001", 3)
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    assert codes(Check([str(tmp_path / "latin.py")]).findings()) == ["W001"]


def test_code_that_is_nested_too_deeply_is_a_finding(tmp_path: Path) -> None:
    deep = "@workflow\nasync def flow():\n    return " + "-" * 5_000 + "1\n"
    assert set(codes(check(tmp_path, deep))) <= {"W001"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("from time import *\n@workflow\nasync def f():\n    perf_counter()", "W101"),
        ("clock = time.time\n@workflow\nasync def f():\n    clock()", "W101"),
        ("@workflow\nasync def f():\n    clock = time.time\n    clock()", "W101"),
        ("@workflow\nasync def f():\n    import datetime as dt\n    dt.datetime.utcnow()", "W101"),
        ("@workflow\nasync def f(at):\n    at.astimezone()", "W101"),
        ("async def g():\n    time.time()\nf = workflow(g)", "W101"),
        ("def make():\n    @workflow\n    async def f():\n        time.time()\n    return f", "W101"),
        ("@workflow\nasync def f():\n    g = lambda: time.time()\n    g()", "W101"),
        ("class A:\n    def b(self):\n        time.time()\n@workflow\nasync def f():\n    A().b()", "W101"),
        ("rng = random.Random(7)\n@workflow\nasync def f():\n    rng.random()", "W102"),
        ("@workflow\nasync def f():\n    os.path.exists('x')", "W201"),
        ("@workflow\nasync def f():\n    await asyncio.open_connection('x', 1)", "W202"),
        ("@workflow\nasync def f():\n    try:\n        await asyncio.sleep(1)\n    except:\n        pass", "W402"),
        ("@workflow\nasync def f():\n    try:\n        await asyncio.sleep(1)\n    finally:\n        return", "W402"),
        ("@activity\ndef a(): ...\n@workflow\nasync def f():\n    if a():\n        pass", "W403"),
        ("@activity\ndef a(): ...\n@workflow\nasync def f():\n    x = a.with_options(timeout=1)()", "W403"),
        ("async def g(): ...\n@workflow\nasync def f():\n    g()", "W403"),
        ("@workflow\nasync def f(a: dict, b: dict):\n    return list(a.keys() & b.keys())", "W404"),
        ("@workflow\nasync def f(a: list):\n    b = set(a)\n    return b.pop()", "W404"),
        ("@workflow\nasync def f(a: set[str]):\n    first, *rest = a\n    return first", "W404"),
        ("@workflow\nasync def f(a: set[str]):\n    return ', '.join(a)", "W404"),
        ("@workflow\nasync def f(a):\n    b = set(a)\n    b = b | {1}\n    return [*b]", "W404"),
        ("A = {1}\nA = A | {2}\n@workflow\nasync def f():\n    return list(A)", "W404"),
        ("A = B | {1}\nB = A | {2}\n@workflow\nasync def f():\n    return list(A)", "W404"),
        ("class A:\n    n = 0\n@workflow\nasync def f():\n    A.n += 1", "W405"),
        ("state = {}\n@workflow\nasync def f():\n    state['x'] = 1", "W405"),
        ("m = object()\n@workflow\nasync def f():\n    try:\n        ...\n    finally:\n        m.count()", "W401"),
    ],
)
def test_a_fault_in_another_form_is_found(body: str, code: str, tmp_path: Path) -> None:
    assert code in codes(check(tmp_path, body + "\n"))


def test_helpers_are_followed_through_relative_imports_and_re_exports(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("from .clock import tick\n")
    (package / "clock.py").write_text("import time\ndef tick():\n    return time.time()\n")
    (package / "one.py").write_text(
        "from batuta import workflow\nimport shop\n@workflow\nasync def f():\n    shop.tick()\n"
    )
    (package / "two.py").write_text(
        "from batuta import workflow\nfrom . import clock\n@workflow\nasync def f():\n    clock.tick()\n"
    )
    for module in ("one", "two"):
        (finding,) = Check([f"shop.{module}"], [str(tmp_path)]).findings()
        assert (Path(finding.file).name, finding.line) == ("clock.py", 3)


def test_workflows_that_a_module_imports_are_checked_with_it(tmp_path: Path) -> None:
    check(tmp_path, "@workflow\nasync def f():\n    time.time()\n", "flows.py")
    for source in ("from flows import f\n", "import flows\nall = [flows.f]\n"):
        (tmp_path / "app.py").write_text(source)
        assert codes(Check([str(tmp_path / "app.py")]).findings()) == ["W101"]


def test_a_missing_thing_is_named() -> None:
    with pytest.raises(batuta.InvalidInput, match=r"no module 'no\.such'"):
        Check(["no.such"])
    with pytest.raises(batuta.InvalidInput, match="neither a module nor a file"):
        Check(["./nowhere.py"])
