"""Whatever fails, and in whatever order it is mended: tried again, a run does everything once."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta import Retry, RunFailed, activity, activity_info, run_child, workflow
from batuta.testing import Environment, VirtualLoop
from batuta.verify import verify
from tests.long import examples

Node = list[Any]

done: Counter[str] = Counter()
keys: dict[str, set[str]] = {}
broken: set[str] = set()


@activity(retry=Retry(attempts=1))
async def act(name: str, seconds: float) -> str:
    keys.setdefault(name, set()).add(activity_info().key)
    await asyncio.sleep(seconds)
    if name in broken:
        raise ConnectionError(name)
    done[name] += 1
    return name


@workflow
async def program(node: Node) -> Any:
    return await execute(node)


async def execute(node: Node) -> Any:
    match node:
        case ["act", name, seconds]:
            return await act(name, seconds)
        case ["far", name, seconds]:
            return await act.with_options(queue="far")(name, seconds)
        case ["nap", seconds]:
            return await asyncio.sleep(seconds, "nap")
        case ["seq", *nodes]:
            return [await execute(each) for each in nodes]
        case ["child", inner]:
            return await run_child(program, inner)
        case ["all", *nodes]:
            found = await asyncio.gather(*map(execute, nodes), return_exceptions=True)
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            return list(found)
    raise AssertionError(node)


def trees() -> st.SearchStrategy[Node]:
    seconds = st.sampled_from([0.0, 1.0, 1.5, 2.0, 50.0])
    leaves: st.SearchStrategy[Node] = st.one_of(
        st.tuples(st.sampled_from(["act", "act", "act", "far"]), st.just("?"), seconds).map(list),
        st.tuples(st.just("nap"), seconds).map(list),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=4).map(lambda nodes: ["seq", *nodes]),
            st.lists(inner, min_size=2, max_size=4).map(lambda nodes: ["all", *nodes]),
            inner.map(lambda node: ["child", node]),
        ),
        max_leaves=16,
    )


def named(node: Node, names: Iterator[int]) -> Node:
    """The same tree with a name of its own for each act."""
    if node[0] in ("act", "far"):
        return [node[0], f"{node[0]}-{next(names)}", node[2]]
    return [named(each, names) if isinstance(each, list) else each for each in node]


def acts(node: Node) -> list[str]:
    if node[0] in ("act", "far"):
        return [node[1]]
    return [name for each in node if isinstance(each, list) for name in acts(each)]


FAILS_TWICE = ["all", ["act", "?", 0.0], ["seq", ["act", "?", 1.5], ["act", "?", 0.0]], ["act", "?", 0.0]]


def test_the_later_of_two_failures_may_be_retried_first() -> None:
    node = named(FAILS_TWICE, iter(range(100)))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_live(node, acts(node), ["act-1", "act-3"]))


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(trees(), st.data())
def test_tried_again_until_it_works_a_run_does_everything_once(tree: Node, data: st.DataObject) -> None:
    node = named(tree, iter(range(100)))
    names = acts(node)
    bad = data.draw(st.sets(st.sampled_from(names), min_size=min(1, len(names)))) if names else set()
    mended = data.draw(st.permutations(sorted(bad)))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_live(node, names, list(mended)))


async def _live(node: Node, names: list[str], mended: list[str]) -> None:
    done.clear()
    keys.clear()
    broken.clear()
    broken.update(mended)
    async with Environment(workflows=[program], activities=[act], queues=["default", "far"]) as env:
        handle = await env.start(program, node, id="one")
        for _ in range(3 * len(names) + 1):
            try:
                await handle.result()
                break
            except RunFailed:
                await env.settle()  # what was cancelled with it has ended
                if mended:
                    broken.discard(mended.pop())
                await handle.retry()
        assert await handle.result() == _expected(node)
        assert done == Counter(names)
        assert all(len(used) == 1 for used in keys.values())
        report = await verify(env.store, [program])
        assert not report.violations, report


def _expected(node: Node) -> Any:
    match node:
        case [("act" | "far"), name, _]:
            return name
        case ["nap", _]:
            return "nap"
        case ["child", inner]:
            return _expected(inner)
        case [_, *nodes]:
            return [_expected(each) for each in nodes]
    raise AssertionError(node)
