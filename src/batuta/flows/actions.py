"""The activities of flows: they call webhooks and HTTP endpoints, publish, ask models and people."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, Struct, UnsetType

from batuta.authoring.activity.attempt import CompleteLater, activity_info
from batuta.authoring.activity.publishing import publish as bus_publish
from batuta.authoring.definitions import activity
from batuta.errors import AddressRefused, BatutaError, InvalidInput, RetryLater
from batuta.flows.ai import AiEndpoint, answer_of
from batuta.flows.host import ActionRequest, AiRequest, ApprovalRequest
from batuta.flows.models import step_run_id_of
from batuta.flows.secrets import Secrets, hide, safe_words
from batuta.flows.values import MISSING, look_up, parse_path
from batuta.webhooks.addresses import AddressPolicy
from batuta.webhooks.client import HttpLimits, HttpResponse, SafeHttpClient
from batuta.webhooks.signatures import sign_webhook

IDEMPOTENCY_HEADER: Final = "X-Idempotency-Key"
_SHOWN: Final = 200
"""Characters of an answer in an error."""
_LONGEST_WAIT: Final = 3_600.0
"""Seconds: a receiver that asks for more patience is called again then."""


class Publish(Protocol):
    """Sends a message to a topic, once for each id."""

    def __call__(self, topic: str, payload: Any, /, *, key: str, id: str, type: str) -> Awaitable[object]: ...


class ActionFailed(BatutaError):
    """The other side did not do it. Trying again may help."""


class ActionResult(Struct, omit_defaults=True):
    """The outcome of an action."""

    output: Any
    ref: str | UnsetType = UNSET
    """The other side's id for it."""


class Actions:
    """The activities, with what they share in one worker."""

    def __init__(
        self,
        *,
        policy: AddressPolicy | None = None,
        limits: HttpLimits | None = None,
        secrets: Secrets | None = None,
        ai: AiEndpoint | None = None,
        publish: Publish | None = None,
    ) -> None:
        self._publish: Publish = publish or bus_publish
        self._policy, self._limits = policy, limits
        self._client: SafeHttpClient | None = None
        self._secrets = secrets or Secrets()
        self._ai = ai

    @property
    def client(self) -> SafeHttpClient:
        """Made when it is first needed: flows without calls need no HTTP."""
        if self._client is None:
            self._client = SafeHttpClient(self._policy, self._limits)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    @activity(name="flow.action")
    async def act(self, request: ActionRequest) -> ActionResult:
        """A webhook, an HTTP request or a message. Without a `url` nothing is sent."""
        step_run_id = step_run_id_of(activity_info().key)
        filled, used = await self._secrets.fill(request.request, request.gaps)
        try:
            if request.action_type == "publish":
                return await self._send_message(request, filled["body"], step_run_id)
            if not filled.get("url"):
                ref = f"dry-run-{uuid5(UUID(step_run_id), 'dry-run')}"
                return ActionResult({"dryRun": True, "actionType": request.action_type}, ref)
            return await self._send(request, filled, step_run_id, used)
        except (AddressRefused, InvalidInput) as error:
            raise InvalidInput(safe_words(error, used)) from None
        except RetryLater:
            raise
        except BatutaError as error:
            raise ActionFailed(safe_words(error, used)) from None

    async def _send(
        self, request: ActionRequest, filled: dict[str, Any], step_run_id: str, used: list[str]
    ) -> ActionResult:
        data = b"" if request.method in ("GET", "HEAD") else _body(filled["body"])
        headers = {"Content-Type": "application/json", **_texts(filled["headers"]), IDEMPOTENCY_HEADER: step_run_id}
        if filled.get("sign"):
            headers |= sign_webhook([filled["sign"]], step_run_id, int(activity_info().started_at.timestamp()), data)
        answer = await self.client.request(request.method, filled["url"], headers=headers, body=data)
        found = hide(_read(answer), used)
        good = answer.status in request.expect if request.expect else 200 <= answer.status < 300
        if not good:
            raise _refused(request, found, answer, used)
        output = (
            _mapped(request.response, found) if request.response else {key: found[key] for key in ("status", "body")}
        )
        return ActionResult(output, _reference(found))

    async def _send_message(self, request: ActionRequest, body: Any, step_run_id: str) -> ActionResult:
        kind = request.message_type or "flow.message"
        await self._publish(request.topic, body, key=request.message_key, id=step_run_id, type=kind)
        return ActionResult({"topic": request.topic, "id": step_run_id}, step_run_id)

    @activity(name="flow.ai_task")
    async def ask(self, request: AiRequest) -> dict[str, Any]:
        """The answer of a model, or the fallback."""
        filled, used = await self._secrets.fill({"api_key": ""}, request.gaps)
        found: dict[str, Any] = hide(await answer_of(request, filled["api_key"], self._ai, lambda: self.client), used)
        return found

    @activity(name="flow.approval")
    async def approval(self, request: ApprovalRequest) -> Any:
        """Sends the request for a decision. It comes by the token, or by the update `flow.decide`."""
        attempt = activity_info()
        token = attempt.token
        if request.notify is not None:
            filled, used = await self._secrets.fill(request.notify, request.gaps)
            told = {
                "token": token,
                "title": request.title,
                "data": request.data,
                "run": attempt.id,
                "step": request.step,
            }
            step_run_id = step_run_id_of(attempt.key)
            notice = ActionRequest(step=request.step, action_type="webhook", request={})
            try:
                await self._send(notice, {**filled, "body": told}, step_run_id, [*used, token])
            except (AddressRefused, InvalidInput) as error:
                raise InvalidInput(safe_words(error, [*used, token])) from None
            except RetryLater:
                raise
            except BatutaError as error:
                raise ActionFailed(safe_words(error, [*used, token])) from None
        raise CompleteLater


def _body(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _texts(headers: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in headers.items()
    }


def _read(answer: HttpResponse) -> dict[str, Any]:
    """The answer as JSON values."""
    body: Any = answer.body.decode("utf-8", "replace")
    if "json" in answer.headers.get("content-type", ""):
        try:
            body = msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, RecursionError):
            pass
    return {"status": answer.status, "headers": answer.headers, "body": body}


def _refused(request: ActionRequest, found: dict[str, Any], answer: HttpResponse, used: list[str]) -> Exception:
    body = found["body"] if isinstance(found["body"], str) else msgspec.json.encode(found["body"]).decode()
    words = hide(f"{request.method} {answer.url} answered {answer.status}: {body[:_SHOWN]}", used)
    wait = answer.headers.get("retry-after", "")
    if answer.status in (429, 503) and wait.isascii() and wait.isdecimal() and len(wait) < 10:
        return RetryLater(min(float(wait), _LONGEST_WAIT), words)
    return ActionFailed(words)


def _mapped(names: dict[str, str], found: dict[str, Any]) -> dict[str, Any]:
    """The output as the step wants it; a value that is not there is null."""
    looked = {name: look_up(found, parse_path(path)) for name, path in names.items()}
    return {name: None if value is MISSING else value for name, value in looked.items()}


def _reference(found: dict[str, Any]) -> str | UnsetType:
    own = look_up(found, ("body", "id"))
    if isinstance(own, str | int) and not isinstance(own, bool):
        return str(own)[:200]
    header = found["headers"].get("x-request-id")
    return header[:200] if header else UNSET
