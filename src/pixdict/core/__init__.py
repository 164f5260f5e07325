"""Keys and claims over HTTP: what the rest of the institution asks."""

from pixdict.caches import LIMITS
from pixdict.core.app import core_app, core_server, core_worker, serve_core
from pixdict.core.service import Core
from pixdict.core.settings import CoreSettings

__all__ = ["LIMITS", "Core", "CoreSettings", "core_app", "core_server", "core_worker", "serve_core"]
