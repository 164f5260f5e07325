"""From MODULE or MODULE:ATTR to the parts of a worker."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import ModuleType
from typing import Any

from batuta.app import App
from batuta.authoring.definitions import Activity, Workflow
from batuta.cli.common.logs import redact_logs
from batuta.cli.common.redaction import say
from batuta.errors import BatutaError, InvalidInput


async def load_app(target: str, stack: AsyncExitStack) -> App:
    """The App that `target` names. Raises InvalidInput.

    MODULE alone: all its workflows and activities. ATTR: an App; or a function that returns one, which may be a
    coroutine function or an async context manager (entered on `stack`, left when the worker has stopped).
    """
    name, colon, path = target.partition(":")
    module = import_user_module(name)
    redact_logs()  # of the handlers that it has set up, too
    if not colon:
        return App.of_module(module)
    found = _attribute(module, path)
    if callable(found) and not isinstance(found, Workflow | Activity):
        with _users_code(f"{target!r} returns no App"):
            found = await _called(found, stack)
        redact_logs()  # nor are those missed that it has set up
    if not isinstance(found, App):
        raise InvalidInput(f"{target!r} is {found!r}, not a batuta.App (or a function that returns one)")
    return found


async def _called(make: Callable[[], Any], stack: AsyncExitStack) -> Any:
    found = make()
    if inspect.isawaitable(found):
        found = await found
    if hasattr(found, "__aenter__"):
        found = await stack.enter_async_context(found)
    return found


def import_user_module(name: str) -> ModuleType:
    """Import a module as Python would from the current directory. Raises InvalidInput."""
    if name.endswith(".py"):
        raise InvalidInput(f"{name!r} is a file: give the name of the module, such as {name[:-3].replace('/', '.')!r}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"{name!r} is not a module: write package.module, or package.module:attribute")
    here = os.getcwd()  # the console script has its own directory there
    if here not in sys.path:
        sys.path.insert(0, here)
    with _users_code(f"module {name!r} cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise InvalidInput(_what_is_missing(name, error.name or "")) from error
        except RuntimeError as error:
            if "asyncio.run()" not in str(error):
                raise
            raise InvalidInput(
                f"module {name!r} calls asyncio.run() when it is imported: put that under `if __name__ == '__main__':`"
            ) from error


def _what_is_missing(name: str, missing: str) -> str:
    if name == missing or name.startswith(missing + "."):
        return f"no module {name!r}: run this where it can be imported, or set PYTHONPATH"
    return f"module {name!r} imports {missing!r}, which is not installed"


@contextmanager
def _users_code(trouble: str) -> Iterator[None]:
    """Errors of the user's code are shown with their traceback; then InvalidInput."""
    try:
        yield
    except BatutaError:
        raise
    except Exception as error:
        say("".join(traceback.format_exception(error)), err=True)
        raise InvalidInput(f"{trouble}: {type(error).__name__}: {error}") from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = [name for name, value in vars(module).items() if isinstance(value, App)]
            hint = f"it has {', '.join(apps)}" if apps else "define it as batuta.App(workflows=[...], activities=[...])"
            raise InvalidInput(f"module {module.__name__!r} has no attribute {path!r}: {hint}") from None
    return found
