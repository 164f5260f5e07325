"""Does workflow code keep the rules that let it be replayed? Reads sources; imports and runs nothing of them."""

from batuta.check.checking import Check
from batuta.check.findings import RULES, Finding, Rule
from batuta.check.locked import compare, read_shapes, shapes_of, write_shapes

__all__ = ["RULES", "Check", "Finding", "Rule", "compare", "read_shapes", "shapes_of", "write_shapes"]
