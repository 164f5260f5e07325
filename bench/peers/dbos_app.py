# mypy: disable-error-code="import-not-found,untyped-decorator"
# DBOS is installed in the peer's environment only.
"""DBOS with its best settings, shared by its measurements. Runs in the peer's environment.

Tried against each other, in its favour: synchronous against async steps, direct calls against handles, 1 to 50
workflows at a time, pools of 1 to 50, with and without the ping of a pooled connection. What is used: synchronous
steps where work is short, async where workflows sleep, pool of 20 without ping. Durability and SQLite's journal are as
DBOS has them (full, DELETE). A file that was put into WAL behind its back makes it faster, 1.5 times in W2; it neither
does that itself nor has a setting for it or a word on it.
"""

from typing import Any, Final

from dbos import DBOS

POOL: Final = 20
NAME: Final = "benchpeer"


def launch(url: str, executor: str = "bench") -> None:
    """Start DBOS on the database at `url`; what this executor left pending is recovered by DBOS itself."""
    config: dict[str, Any] = {
        "name": NAME,
        "system_database_url": url,
        "sys_db_pool_size": POOL,
        "db_engine_kwargs": {"pool_pre_ping": False},
        "notification_listener_polling_interval_sec": 0.01,
        "log_level": "ERROR",
        "executor_id": executor,
        "application_version": "1",
    }
    DBOS(config=config)
    DBOS.launch()
