"""Beside the planted faults: what a workflow calls there."""

import time


def stamp() -> float:
    return deeper()


def deeper() -> float:
    return time.time()  # expect: W101


def nobody_calls_this() -> float:
    return time.time()
