"""Sixty tries to leave the language, from the document and from the event. None of them does."""

from typing import Any

import pytest

from batuta.flows.conditions import compile_condition
from batuta.flows.secrets import Secrets
from batuta.flows.workflow import Flows
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.kit import DONE, check_steps, outputs, ran, step
from tests.flows.server import serving

CODE = [
    "__import__('os').system('id')",
    "().__class__.__bases__[0].__subclasses__()",
    "event.__class__",
    "event.payload.__class__.__mro__",
    "event.__init__.__globals__",
    'eval("1+1")',
    'exec("x=1")',
    'open("/etc/passwd")',
    "lambda: 1",
    "[x for x in event.payload]",
    "event.payload['x']",
    "event.payload[0]",
    "1 + 1",
    "event.payload.x or 1",
    "event.payload.x if true else 1",
    'f"{event}"',
    "upper.__globals__",
    "upper(upper)",
    'getattr(event, "x")',
    "config.SECRET",
    "self",
    "request",
    "process.env.PATH",
    'constructor.constructor("return this")()',
    "${7*7}",
    "#{7*7}",
    "<%= 7*7 %>",
    "%{7*7}",
    "{{7*7}}",
    "7*7",
    "joiner.__init__.__globals__.os",
    "cycler.__init__",
    "namespace.__init__",
    "event.payload.x;drop table runs",
    "secret://env/PATH",
    "env.PATH",
    "import os",
    "while true",
    "default",
    "default()",
    "default(event.payload.x)",
    'replace("aaaa", "a")',
    "`id`",
    "$(id)",
    "|id",
    "\\x41",
    "event..payload",
    ".event",
    "event.",
    "event.payload.x event.payload.y",
    "context.x = 1",
]
"""In the place of an expression: none is one."""

DATA = [
    "{{ event.payload.other }}",
    "{{ steps.done.output }}",
    "secret://env/TOKEN",
    "Bearer secret://env/TOKEN",
    "%7B%7B event %7D%7D",
    '" , "x": "',
    "</script><script>alert(1)</script>",
    "'; drop table runs; --",
    "${jndi:ldap://x}",
    "\u202eabc",
    "{{",
    "}}",
]
"""In events: they come out as they went in."""


@pytest.mark.parametrize("code", CODE)
def test_what_is_no_expression_is_refused(code: str) -> None:
    found, faults = check_steps([step("a", "set", values={"x": f"{{{{ {code} }}}}"}), DONE])
    if found is not None:  # a path like any other: it leads nowhere in Python
        assert code.startswith("event.")
        assert "__" in code
    else:
        assert faults[0].path.startswith("steps[0].config.values")


@pytest.mark.parametrize(
    "field", ["event.__class__", "__class__", "event.payload.__class__.__mro__.0", "context.__dict__"]
)
def test_conditions_find_no_attributes_of_python(field: str) -> None:
    scope: dict[str, Any] = {"event": {"payload": {}}, "context": {}, "steps": {}}
    assert compile_condition({"field": field, "operator": "exists"})(scope) is False


@pytest.mark.parametrize("data", DATA)
async def test_data_stays_data(data: str) -> None:
    secrets = Secrets(environment={"BATUTA_SECRET_TOKEN": "the-token"})
    async with serving() as server:
        flows = Flows(policy=AddressPolicy(allow=["127.0.0.1"]), secrets=secrets)
        body = {"a": "{{ event.payload.x }}", "b": "<{{ event.payload.x }}>"}
        act = step("act", "action", url=server.url + "/{{ event.payload.x }}/end?q={{ event.payload.x }}", body=body)
        found = await ran([step("keep", "set", values={"x": "{{ event.payload.x }}"}), act, DONE], {"x": data}, flows)
    sent = server.received[0]
    assert sent.json() == {"a": data, "b": f"<{data}>"}
    assert found.run.context["x"] == data
    assert sent.path.count("/") == 2
    assert sent.path.count("?") == 1
    assert "the-token" not in str(sent)


@pytest.mark.parametrize("data", ["x\r\nX-Evil: 1", "x\nX-Evil: 1", "x\0"])
async def test_data_cannot_add_headers(data: str) -> None:
    async with serving() as server:
        flows = Flows(policy=AddressPolicy(allow=["127.0.0.1"]))
        act = step("act", "action", url=server.url, headers={"X-A": "{{ event.payload.x }}"})
        found = await ran([act, DONE], {"x": data}, flows)
    assert found.run.status == "FAILED"
    assert not server.received


@pytest.mark.parametrize(
    "config",
    [
        {"url": "https://api.example.com{{ event.payload.x }}"},
        {"url": "https://user@{{ event.payload.x }}/"},
        {"url": "{{ event.payload.x }}", "headers": {"a": "secret://env/T"}},
        {"url": "https://{{ event.payload.x }}/", "body": {"a": "secret://env/T"}},
        {"url": "https://{{ event.payload.x }}/secret://env/T"},
    ],
)
def test_an_event_does_not_choose_where_secrets_go(config: dict[str, Any]) -> None:
    _, faults = check_steps([step("a", "action", **config), DONE])
    assert [one.path for one in faults] == ["steps[0].config.url"]


async def test_a_whole_url_may_come_from_an_event_within_the_policy() -> None:
    async with serving() as server:
        steps = [step("a", "action", url="{{ event.payload.callback }}", retry={"attempts": 1}), DONE]
        allowed = await ran(
            steps, {"callback": server.url + "/a?b=c"}, Flows(policy=AddressPolicy(allow=["127.0.0.1"]))
        )
        refused = await ran(steps, {"callback": server.url}, Flows(policy=AddressPolicy(allow=[])))
    assert outputs(allowed)["a"]["status"] == 200
    assert refused.run.status == "FAILED"
    assert [one.path for one in server.received] == ["/a?b=c"]
