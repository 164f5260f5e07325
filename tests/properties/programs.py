"""Random workflows as data, and the one workflow that runs them."""

import asyncio
from typing import Any

from hypothesis import strategies as st

from batuta import Retry, activity, activity_info, continue_as_new, job, run_child, start_child, transaction, workflow

Node = list[Any]

executed: list[str] = []
"""The key of every execution of an activity, in order."""


@activity
async def act(number: int) -> int:
    executed.append(activity_info().key)
    return number * 7 + 1


@activity
def act_in_thread(number: int) -> int:
    executed.append(activity_info().key)
    return number * 7 + 2


@activity
async def flaky(number: int) -> str:
    info = activity_info()
    executed.append(info.key)
    if info.attempt < 3:
        raise ConnectionError(f"attempt {info.attempt}")
    return f"flaky {number}"


@activity(retry=Retry(attempts=1))
async def fail(number: int) -> None:
    executed.append(activity_info().key)
    raise ValueError(f"failed {number}")


@job
async def note(key: str) -> str:
    return key


@activity(transactional=True)
async def once(number: int) -> int:
    executed.append(activity_info().key)
    transaction().enqueue(note, activity_info().key, id=f"note {activity_info().key}")
    return number * 7 + 3


@workflow
async def program(node: Node) -> Any:
    if node[0] == "then":
        _, first, rest = node
        await execute(["try", first, ["nap", 1]])
        continue_as_new(rest)
    return await execute(node)


async def execute(node: Node) -> Any:
    match node:
        case ["act", number]:
            return await act(number)
        case ["thread", number]:
            return await act_in_thread(number)
        case ["once", number, *wait]:
            await asyncio.sleep(sum(wait))
            return await once(number)
        case ["fail", number]:
            return await fail(number)
        case ["flaky", number, delay]:
            policy = Retry(attempts=3, first=delay, factor=1, jitter=0)
            return await flaky.with_options(retry=policy)(number)
        case ["nap", seconds]:
            await asyncio.sleep(seconds)
            return "nap"
        case ["seq", *nodes]:
            return [await execute(each) for each in nodes]
        case ["child", inner, *wait]:
            await asyncio.sleep(sum(wait))
            return await run_child(program, inner)
        case ["begin", inner, meanwhile, *wait]:
            await asyncio.sleep(sum(wait))
            child = await start_child(program, inner)
            said = await execute(meanwhile)
            return [said, await child.result()]
        case [("gather" | "group" | "race"), *_]:
            return await together(node)
        case _:
            return await guarded(node)


async def together(node: Node) -> Any:
    match node:
        case ["gather", *nodes]:
            return [show(r) for r in await asyncio.gather(*map(execute, nodes), return_exceptions=True)]
        case ["group", *nodes]:
            said: list[Any] = []
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(execute(each)) for each in nodes]
                said += [task.result() for task in tasks]
            except* Exception as errors:  # noqa: BLE001 - whatever it is
                said.append(sorted(map(show, errors.exceptions)))
            return said
        case ["race", *nodes]:
            tasks = [asyncio.create_task(execute(each)) for each in nodes]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                won = [task.done() for task in tasks]
                for task in tasks:
                    task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            return [won, [show(r) for r in ended]]
    raise AssertionError(node)


async def guarded(node: Node) -> Any:
    match node:
        case ["timeout", seconds, inner]:
            try:
                async with asyncio.timeout(seconds):
                    return await execute(inner)
            except TimeoutError:
                return "timeout"
        case ["try", inner, other]:
            try:
                return await execute(inner)
            except Exception as error:  # noqa: BLE001 - whatever it is
                return [show(error), await execute(other)]
        case ["clean", inner, other]:
            try:
                return await execute(inner)
            except asyncio.CancelledError:
                return ["cleaned", await execute(other)]
        case ["finally", inner, other]:
            try:
                return await execute(inner)
            finally:
                await execute(other)
    raise AssertionError(node)


def show(value: Any) -> Any:
    if isinstance(value, BaseExceptionGroup):
        return sorted(map(str, map(show, value.exceptions)))
    return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else value


# -- how they are made

_numbers = st.integers(0, 99)
_seconds = st.sampled_from([1, 5, 20, 40, 100, 3600])
_leaves = st.one_of(
    st.tuples(st.just("act"), _numbers),
    st.tuples(st.just("act"), _numbers),
    st.tuples(st.just("once"), _numbers),
    st.tuples(st.just("fail"), _numbers),
    st.tuples(st.just("flaky"), _numbers, _seconds),
    st.tuples(st.just("nap"), _seconds),
    st.tuples(st.just("nap"), _seconds),
)


def _wider(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(children, min_size=1, max_size=4)
    return st.one_of(
        st.builds(lambda kind, nodes: [kind, *nodes], st.sampled_from(["seq", "gather", "group", "race"]), several),
        st.tuples(st.just("timeout"), _seconds, children),
        st.tuples(st.sampled_from(["try", "clean", "finally", "begin"]), children, children),
        st.tuples(st.just("child"), children),
    )


def _distinct(node: Any, used: list[int]) -> Node:
    """Give each wait a length of its own, so that no two things ever happen at the same moment by chance."""
    kind, *rest = node
    made: Node = [kind]
    for part in rest:
        if kind in ("nap", "timeout", "flaky") and part is rest[0 if kind != "flaky" else -1] and part in _ALL_SECONDS:
            made.append(part + 0.01 * 2 ** len(used))
            used.append(1)
        else:
            made.append(_distinct(part, used) if isinstance(part, list | tuple) else part)
    if kind in ("child", "begin", "once"):  # runs that begin together end in any order
        made.append(0.01 * 2 ** len(used))
        used.append(1)
    return made


_ALL_SECONDS = (1, 5, 20, 40, 100, 3600)

_plain = st.recursive(_leaves, _wider, max_leaves=8)
_chains = st.tuples(st.just("then"), _plain, _plain)
programs = st.one_of(_plain, _plain, _chains).map(lambda node: _distinct(node, []))
