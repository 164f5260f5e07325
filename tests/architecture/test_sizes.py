"""Files and functions stay small enough to read at once."""

from statistics import quantiles

from tests.architecture.source import ROOT, functions, parse, python_files

FILE_LINES = 600
FUNCTION_LINES = 60
FUNCTION_LINES_P90 = 35

OURS = python_files("src", "bench", "chaos", "examples", "tools")


def test_no_file_is_longer_than_600_lines() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in [*OURS, *python_files("tests")]}
    too_long = [f"{path.relative_to(ROOT)}: {n}" for path, n in sizes.items() if n > FILE_LINES]
    assert not too_long, too_long


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}: {name} has {n} lines"
        for path in [*OURS, *python_files("tests")]
        for name, n in functions(parse(path))
        if n > FUNCTION_LINES
    ]
    assert not too_long, too_long


def test_nine_functions_out_of_ten_have_at_most_35_lines() -> None:
    lengths = [n for path in python_files("src") for _, n in functions(parse(path))]
    assert quantiles(lengths, n=10)[8] <= FUNCTION_LINES_P90
