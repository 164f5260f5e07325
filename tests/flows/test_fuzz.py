"""Random flows, sound and broken: never a crash, a hang, or a journal that does not replay."""

import json
import random
from typing import Any

import pytest

from batuta.flows.conditions import ALIASES, OPERATORS, compile_condition
from batuta.flows.document import STEP_TYPES
from batuta.flows.rehearsal import rehearse
from batuta.flows.workflow import Flows, flow
from batuta.testing import Environment, in_virtual_time
from tests.flows.every import STEPS, World, double_it
from tests.flows.kit import DONE, check_steps, ended, start, step
from tests.flows.test_conditions import reference

PATHS = ["event.payload.a", "event.payload.b.c", "context.x", "event.payload.list.0", "a", "b.c"]
UNARY = ("exists", "not_exists", "is_empty", "is_not_empty")


def value(rng: random.Random, depth: int = 0) -> Any:
    simple = [None, True, False, 0, 1, 1.0, -2, 0.5, "", "a", "1", "ab", 10**15]
    if depth > 2 or rng.random() < 0.6:
        return rng.choice(simple)
    if rng.random() < 0.5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice("abcx"): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def condition(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth < 4 and rng.random() < 0.4:
        word = rng.choice(["and", "or", "not"])
        parts = [condition(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
        return {word: parts[0] if word == "not" else parts}
    operator = rng.choice([*OPERATORS, *ALIASES])
    name = ALIASES.get(operator, operator)
    wanted: Any = value(rng)
    if name in UNARY:
        wanted = True
    elif name in ("in", "not_in"):
        wanted = [value(rng) for _ in range(rng.randrange(4))]
    elif name in ("starts_with", "ends_with"):
        wanted = rng.choice(["", "a", "ab"])
    return {"field": rng.choice(PATHS), "operator": operator, "value": wanted}


def payload(rng: random.Random) -> dict[str, Any]:
    found = value(rng)
    return {"a": value(rng), "b": {"c": value(rng)}, "list": [value(rng)]} | (found if isinstance(found, dict) else {})


def template(rng: random.Random, depth: int = 0) -> Any:
    inner = rng.choice([*PATHS[:4], "1", '"a"', "null", "sum(event.payload.list)"])
    for name in rng.sample(["upper", "text", "number", "length", "json", "keys", "first"], rng.randrange(3)):
        inner = f"{name}({inner})"
    if rng.random() < 0.6:
        inner = f"default({inner}, 0)"
    found = rng.choice([f"{{{{ {inner} }}}}", f"<{{{{ {inner} }}}}>", value(rng)])
    return {"k": [found, template(rng, depth + 1)]} if depth < 2 and rng.random() < 0.2 else found


def some_steps(rng: random.Random, count: int, prefix: str, depth: int = 0) -> list[dict[str, Any]]:
    keys = [f"{prefix}{place}" for place in range(count)]
    return [one_step(rng, key, keys[place + 1 :], depth) for place, key in enumerate(keys)]


def one_step(rng: random.Random, key: str, later: list[str], depth: int) -> dict[str, Any]:
    kind = rng.choice([one for one in STEP_TYPES if one != "end" or depth])
    more: dict[str, Any] = {"when": condition(rng)} if rng.random() < 0.2 else {}
    if later and rng.random() < 0.1:
        more["next"] = rng.choice(later)
    if rng.random() < 0.1:
        more["output"] = {"x": template(rng)}
    to = rng.choice(later) if later else ""

    def inner(name: str) -> list[dict[str, Any]]:
        return some_steps(rng, rng.randrange(1, 3), f"{key}_{name}", depth + 1)

    if depth > 2 and kind in ("parallel", "for_each", "try"):
        kind = "set"
    configs: dict[str, Any] = {
        "condition": lambda: {"rule": condition(rng), "onTrue": to},
        "switch": lambda: {
            "cases": [{"when": condition(rng), "to": to}] if to else [{"when": condition(rng), "to": key}]
        },
        "action": lambda: {"actionType": rng.choice(["webhook", "mail"]), "body": template(rng)},
        "python": lambda: {"activity": "double_it", "args": [rng.choice([1, template(rng)])]},
        "ai_task": lambda: {"fallback": value(rng) or 1, "prompt": str(template(rng)), "input": template(rng)},
        "delay": lambda: {"seconds": rng.choice([0, 1, 3600, "{{ default(event.payload.a, 0) }}"])},
        "wait_event": lambda: {"event": "e", "onTimeout": to},
        "approval": lambda: {"title": str(template(rng)), "onTimeout": to},
        "parallel": lambda: {"branches": [inner("p"), inner("q")], "concurrency": rng.randrange(1, 4)},
        "for_each": lambda: {"items": rng.choice(["{{ event.payload.list }}", [1, 2, 3]]), "steps": inner("e")},
        "try": lambda: {"steps": inner("t"), "catch": inner("c"), "finally": inner("f") if rng.random() < 0.3 else []},
        "sub_flow": lambda: {"workflow": "inner", "payload": {"n": 1}},
        "set": lambda: {"values": {rng.choice("xyz"): template(rng)}},
        "fail": lambda: {"message": str(template(rng))},
        "compensate": lambda: {"actionType": "mail", "body": template(rng)},
        "end": lambda: {"result": template(rng)},
    }
    if kind in ("wait_event", "approval"):
        more["timeout"] = 60
    return step(key, kind, **more, **configs[kind]())


def flow_of(rng: random.Random) -> list[dict[str, Any]]:
    return [step("first", "set", values={"x": 1}), *some_steps(rng, rng.randrange(1, 7), "s"), DONE]


def broken(rng: random.Random, document: Any) -> Any:
    """The document with something else somewhere."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.randrange(1, 4)):
        place = document
        while isinstance(place, dict | list) and place:
            parts = list(place) if isinstance(place, dict) else list(range(len(place)))
            at = rng.choice(parts)
            if rng.random() < 0.3 or not isinstance(place[at], dict | list) or not place[at]:
                _spoil(rng, place, at)
                break
            place = place[at]
    return document


def _spoil(rng: random.Random, place: Any, at: Any) -> None:
    junk: list[Any] = [
        None,
        -1,
        10**30,
        "",
        "{{",
        "{{ steps.nobody.output }}",
        "secret://",
        [],
        {},
        [[]],
        "a" * 5_000,
        True,
    ]
    what = rng.randrange(3)
    if what == 0:
        del place[at]
    elif what == 1 and isinstance(place, dict):
        place[rng.choice(["type", "key", "config", "next", "if", "unknown", "steps"])] = rng.choice(junk)
    else:
        place[at] = rng.choice(junk)


def test_ten_thousand_conditions_agree_with_the_reference() -> None:
    rng = random.Random(4711)
    for _ in range(10_000):
        rule = condition(rng)
        scope = {"event": {"payload": payload(rng)}, "context": {"x": value(rng)}, "steps": {}}
        assert compile_condition(rule)(scope) == reference(rule, scope), (rule, scope)


async def test_sound_flows_are_accepted_and_come_to_an_end() -> None:
    rng = random.Random(1)
    accepted = 0
    for _ in range(150):
        document = flow_of(rng)
        found, faults = check_steps(document)
        if found is None:
            assert all("without a wait" in str(one) or "another block" in str(one) for one in faults), faults
            continue
        accepted += 1
        rehearsal = await rehearse(found, payload(rng))
        assert rehearsal.status in ("COMPLETED", "FAILED")
        assert rehearsal.steps
    assert accepted > 100


def test_broken_flows_are_refused_with_faults_or_accepted_and_never_crash() -> None:
    rng = random.Random(2)
    refused = 0
    for _ in range(400):
        found, faults = check_steps(json.dumps(broken(rng, rng.choice([STEPS, flow_of(rng)]))))
        assert (found is None) == bool(faults)
        assert all(one.message for one in faults)
        refused += found is None
    assert refused > 120


@pytest.mark.parametrize("seed", range(4))
@in_virtual_time
async def test_random_flows_run_to_an_end_and_every_turn_replays(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    flows = Flows(publish=world.publish, workflows_of=world.flows()._workflows_of, activities=[double_it])
    async with Environment(**flows.parts(), always_replay=True) as env:
        for number in range(8):
            document = flow_of(rng)
            if check_steps(document)[0] is None:
                continue
            handle = await env.start(flow, start(document, payload(rng)), id=f"r{number}")
            found = await ended(handle)
            assert found.run.status in ("COMPLETED", "FAILED"), (document, found.run)
            assert found.run.error is None or found.run.error.startswith("Step "), found.run
            assert found.logs[-1].message.startswith("Run ")
