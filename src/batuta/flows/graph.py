"""The steps of a flow as a graph: which may follow which. Finds what no single step can show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from batuta.flows.conditions import paths_of
from batuta.flows.document import (
    MOST_STEPS,
    WAITS,
    ConditionStep,
    EndStep,
    FailStep,
    ForEachStep,
    StepBase,
    SwitchStep,
    TryStep,
    all_steps,
    blocks_of,
    is_given,
    targets_of,
    template_fields,
)
from batuta.flows.expressions import paths_in
from batuta.flows.faults import Fault, guess
from batuta.flows.values import texts_of

Node = tuple[str, str]
"""The key of a step, and "in" or "out": before it and after it."""
_AFTER = frozenset({"output", "config.collect"})
"""Fields that are evaluated after the step, and may use its own output."""


class Reference(Struct, frozen=True):
    """A path that a step reads."""

    field: str
    at: str
    """The place in that field, of a template of several values."""
    read: tuple[str, ...]


class _Block(Struct):
    """Some steps that follow each other."""

    path: str
    steps: Sequence[StepBase]


def check_graph(steps: Sequence[StepBase], path: str, faults: list[Fault]) -> None:
    """Adds the faults of all steps together."""
    blocks = list(_blocks(steps, path))
    count = sum(len(block.steps) for block in blocks)
    if count > MOST_STEPS:
        faults.append(Fault(path, f"{count:,} steps, with those in blocks", f"at most {MOST_STEPS}: use sub_flows"))
        return
    _check_outline(steps, path, faults)
    where, unique = _check_keys(blocks, faults)
    sound = [_check_targets(block, where, faults) for block in blocks]
    if unique:
        for block in blocks:
            _check_cycles(block, faults)
    if unique and all(sound):
        graph = Graph(steps)
        for block in blocks:
            for place, step in enumerate(block.steps):
                _check_references(step, f"{block.path}[{place}]", graph, where, faults)


def _blocks(steps: Sequence[StepBase], path: str) -> Iterator[_Block]:
    yield _Block(path, steps)
    for place, step in enumerate(steps):
        for where, block in blocks_of(step):
            yield from _blocks(block, f"{path}[{place}].{where}")


def _check_outline(steps: Sequence[StepBase], path: str, faults: list[Fault]) -> None:
    if steps and isinstance(steps[0], EndStep):
        faults.append(Fault(f"{path}[0].type", "the first step must not be an end", "put what it is to do before it"))
    if not any(isinstance(step, EndStep) for step in steps):
        faults.append(Fault(path, "there is no end", 'add {"key": "done", "type": "end"}'))


def _check_keys(blocks: Iterable[_Block], faults: list[Fault]) -> tuple[dict[str, str], bool]:
    """The path of the block of each key, and whether no key is there twice."""
    where: dict[str, str] = {}
    first: dict[str, str] = {}
    unique = True
    for block in blocks:
        for place, step in enumerate(block.steps):
            at = f"{block.path}[{place}].key"
            if step.key in where:
                unique = False
                faults.append(Fault(at, f"the key {step.key!r} is taken", f"by {first[step.key]}: choose another one"))
            where.setdefault(step.key, block.path)
            first.setdefault(step.key, at)
    return where, unique


def _check_targets(block: _Block, where: dict[str, str], faults: list[Fault]) -> bool:
    before = len(faults)
    for place, step in enumerate(block.steps):
        for name, target in targets_of(step):
            at = f"{block.path}[{place}].{name}"
            if target not in where:
                hint = guess(target, where, faults) or f"known: {', '.join(list(where)[:10])}"
                faults.append(Fault(at, f"there is no step {target!r}", hint))
            elif where[target] != block.path:
                faults.append(
                    Fault(
                        at, f"the step {target!r} is in another block", "a step is followed by steps of its own block"
                    )
                )
    return len(faults) == before


def followers(steps: Sequence[StepBase], place: int) -> list[str]:
    """The keys that may come after a step of a block; "" is the end of the block."""
    step = steps[place]
    after = steps[place + 1].key if place + 1 < len(steps) else ""
    found = [target for _, target in targets_of(step)]
    if isinstance(step, EndStep | FailStep):
        return [step.next or after] if step.if_ is not None else []
    decided = (isinstance(step, ConditionStep) and step.config.on_true and step.config.on_false) or (
        isinstance(step, SwitchStep) and step.config.default
    )
    if step.next:
        return found
    return found if decided and step.if_ is None else [*found, after]


def _check_cycles(block: _Block, faults: list[Fault]) -> None:
    """A cycle needs a step that waits, whatever happens: one that is never skipped."""
    places = {step.key: place for place, step in enumerate(block.steps)}
    state: dict[int, int] = {}
    for start in range(len(block.steps)):
        stack: list[tuple[int, list[int]]] = [(start, [])] if state.get(start) is None else []
        while stack:
            place, left = stack[-1]
            if state.get(place) is None:
                state[place] = 1
                step = block.steps[place]
                waits = isinstance(step, WAITS) and step.if_ is None
                left[:] = [] if waits else [places[key] for key in followers(block.steps, place) if key in places]
            if not left:
                state[place] = 2
                stack.pop()
                continue
            following = left.pop()
            if state.get(following) == 1:
                step = block.steps[place]
                faults.append(
                    Fault(
                        f"{block.path}[{place}]",
                        f"{step.key!r} leads back to {block.steps[following].key!r} without a wait",
                        "put a delay, wait_event or approval into the cycle",
                    )
                )
            elif state.get(following) is None:
                stack.append((following, []))


class Graph(Struct):
    """Which steps may come after which, over all blocks."""

    steps: Sequence[StepBase]
    edges: dict[Node, list[Node]] = field(default_factory=dict)
    _seen: dict[str, frozenset[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._add_block(self.steps, [])

    def _add(self, before: Node, after: Iterable[Node]) -> None:
        self.edges.setdefault(before, []).extend(after)

    def _add_block(self, steps: Sequence[StepBase], exits: Sequence[Node]) -> None:
        """`exits`: what comes when the block is done."""
        keys = {step.key for step in steps}
        for place, step in enumerate(steps):
            following: list[Node] = []
            for key in followers(steps, place):
                following += [(key, "in")] if key in keys else exits
            if isinstance(step, EndStep):
                following += exits
            self._add((step.key, "in"), [(step.key, "out")])
            self._add((step.key, "out"), following)
            self._add_inner(step)

    def _add_inner(self, step: StepBase) -> None:
        """The steps in its blocks. The steps of a `for_each` are not seen from outside."""
        after = [] if isinstance(step, ForEachStep) else [(step.key, "out")]
        if isinstance(step, TryStep):
            config = step.config
            last = [(config.finally_[0].key, "in")] if config.finally_ else after
            rescue = [(config.catch[0].key, "in")] if config.catch else last
            self._add_block(config.steps, last)
            for inner in all_steps(config.steps):  # any of them may fail
                self._add((inner.key, "out"), rescue)
            self._add((step.key, "in"), [(config.steps[0].key, "in"), *rescue])
            self._add_block(config.catch, last)
            for inner in all_steps(config.catch):
                self._add((inner.key, "out"), last)
            self._add_block(config.finally_, after)
            return
        for _, block in blocks_of(step):
            if block:
                self._add((step.key, "in"), [(block[0].key, "in")])
                self._add_block(block, after)

    def comes_before(self, key: str, node: Node) -> bool:
        """Whether the step may be done when the flow is at that node."""
        if key not in self._seen:
            seen: set[Node] = {(key, "out")}
            waiting = [(key, "out")]
            while waiting:
                for following in self.edges.get(waiting.pop(), ()):
                    if following not in seen:
                        seen.add(following)
                        waiting.append(following)
            self._seen[key] = frozenset(seen)
        return node in self._seen[key]


# -- references


def _check_references(step: StepBase, path: str, graph: Graph, where: dict[str, str], faults: list[Fault]) -> None:
    for one in references(step):
        at, read, is_after = one.at, one.read, one.field in _AFTER
        if len(read) < 2 or read[0] != "steps":
            continue
        key = read[1]
        if key not in where:
            hint = guess(key, where, faults) or "see the keys of the steps"
            faults.append(Fault(f"{path}.{at}", f"there is no step {key!r}", hint))
        elif is_after and _inside(step, key):
            continue
        elif not graph.comes_before(key, (step.key, "out" if is_after else "in")):
            faults.append(
                Fault(f"{path}.{at}", f"the step {key!r} never comes before this one", "refer to an earlier step")
            )
        elif len(read) > 2 and read[2] != "output":
            faults.append(Fault(f"{path}.{at}", f"a step has only an output, not {read[2]!r}", f"steps.{key}.output"))


def _inside(step: StepBase, key: str) -> bool:
    return any(one.key == key for _, block in blocks_of(step) for one in all_steps(block))


def references(step: StepBase) -> list[Reference]:
    """The paths that a step reads, without those of steps in its blocks."""
    found = [] if step.if_ is None else _rule_references(step.if_, "if")
    found += _template_references(step.output, "output")
    if isinstance(step, ConditionStep):
        found += _rule_references(step.config.rule, "config.rule")
    elif isinstance(step, SwitchStep):
        for place, case in enumerate(step.config.cases):
            found += _rule_references(case.when, f"config.cases[{place}].when")
    config: Any = getattr(step, "config", None)
    return found + _config_references(config, "config")


def _config_references(config: Struct, at: str) -> list[Reference]:
    """The paths in the templates of a config, and of the structs in it, but not in its blocks."""
    found: list[Reference] = []
    for name, told in template_fields(type(config)):
        if is_given(value := getattr(config, name)):
            found += _template_references(value, f"{at}.{told}")
    for name in config.__struct_fields__:
        if isinstance(inner := getattr(config, name), Struct):
            found += _config_references(inner, f"{at}.{name}")
    return found


def _rule_references(rule: Any, field: str) -> list[Reference]:
    return [Reference(field, field, read) for read in paths_of(rule)]


def _template_references(value: Any, field: str) -> list[Reference]:
    return [Reference(field, at, read) for at, text in texts_of(value, field) for read in paths_in(text)]
