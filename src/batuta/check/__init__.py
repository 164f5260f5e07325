"""Does workflow code keep the rules that let it be replayed? Reads sources; imports and runs nothing of them."""

from batuta.check.checker import Check
from batuta.check.findings import RULES, Finding, Rule
from batuta.check.shape_file import compare, read_shapes, shapes_of, write_shapes

__all__ = ["RULES", "Check", "Finding", "Rule", "compare", "read_shapes", "shapes_of", "write_shapes"]
