"""Signing in and out, and who is signed in."""

from __future__ import annotations

from importlib.metadata import version

from msgspec import Struct

from batuta.server.access.check import EVERY_NAMESPACE, Admission
from batuta.server.access.sign_in import COOKIE, SESSION_SECONDS, principal_of
from batuta.server.http.call import Answer, Call, Principal, Refused
from batuta.server.http.routing import Repeat, Scope, route


class PrincipalDocument(Struct, kw_only=True):
    name: str
    kind: str
    scope: str
    namespace: str


class PageEntry(Struct, kw_only=True):
    """A page of the application, for the menu."""

    title: str
    path: str


class SessionDocument(Struct, kw_only=True):
    """The caller, and the token that a page needs for changes."""

    authenticated: bool
    sign_in: str
    """`key`: a key is needed. `none`: there is no key, and this machine may do everything. `app`: the application that
    the server is mounted in decides."""
    csrf_token: str | None
    principal: PrincipalDocument | None
    namespace: str
    version: str
    pages: list[PageEntry]


def principal_document(principal: Principal) -> PrincipalDocument:
    return PrincipalDocument(
        name=principal.name, kind=principal.kind, scope=principal.scope.word, namespace=principal.namespace
    )


async def session_document(call: Call, found: Admission | None) -> SessionDocument:
    own = call.server.namespace
    return SessionDocument(
        authenticated=found is not None,
        sign_in=await call.server.sign_in(),
        csrf_token=None if found is None else call.server.signer.csrf_token(found.session),
        principal=None if found is None else principal_document(found.principal),
        namespace=own if found is None or found.principal.namespace == EVERY_NAMESPACE else found.principal.namespace,
        version=version("batuta"),
        pages=_pages(call, found),
    )


def _pages(call: Call, found: Admission | None) -> list[PageEntry]:
    """Pages of the application that the caller may see."""
    scope = Scope.PUBLIC if found is None else found.principal.scope
    return [PageEntry(title=page.title, path=page.path) for page in call.server.pages if page.scope <= scope]


class SignInBody(Struct, kw_only=True, forbid_unknown_fields=True):
    key: str

    def __repr__(self) -> str:
        return "<a key>"


def _cookie(call: Call, value: str, age: int) -> str:
    secure = "; Secure" if call.request.url.scheme == "https" else ""
    return f"{COOKIE}={value}; Max-Age={age}; Path={call.root or '/'}; HttpOnly; SameSite=Strict{secure}"


async def sign_in(call: Call) -> Answer:
    credentials = call.server.credentials
    if credentials is None:
        raise Refused(404, "not_found", "this server has no sign-in of its own: its application decides")
    key = await credentials.check(call.body.key.strip(), call.request, by_hand=True)
    cookie, session = credentials.new_session(key)
    found = Admission(principal_of(key), ambient=True, session=session)
    headers = {"Set-Cookie": _cookie(call, cookie, SESSION_SECONDS)}
    return Answer(body=await session_document(call, found), headers=headers)


async def sign_out(call: Call) -> Answer:
    cookie = call.request.cookies.get(COOKIE)
    if cookie is not None and call.server.credentials is not None:
        await call.server.credentials.end_session(cookie)
    return Answer(status=204, headers={"Set-Cookie": _cookie(call, "", 0)})


async def show(call: Call) -> SessionDocument:
    return await session_document(call, await call.server.auth.admission(call.request))


ROUTES = (
    route(
        "GET",
        "/api/v1/session",
        show,
        "The signed-in user, and the token that changes need.",
        SessionDocument,
        scope=Scope.PUBLIC,
        namespaced=False,
    ),
    route(
        "POST",
        "/api/v1/session",
        sign_in,
        "Sign in with a key.",
        SessionDocument,
        scope=Scope.PUBLIC,
        body=SignInBody,
        repeat=Repeat.FREE,
        namespaced=False,
    ),
    route("DELETE", "/api/v1/session", sign_out, "Sign out.", None, scope=Scope.PUBLIC, status=204, namespaced=False),
)
