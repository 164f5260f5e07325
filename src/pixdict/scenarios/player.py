"""Plays scenarios on a stand, one at a time, and leaves everything as it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from batuta.clock import SystemClock, as_datetime
from batuta.errors import InvalidInput
from pixdict.dev.stand import ISPB, Stand
from pixdict.scenarios.ledger import Ledger
from pixdict.scenarios.stage import Missing, Overdue, Stage

log = logging.getLogger("pixdict.scenarios")
LONGEST = 180.0
"""Seconds of a play."""


class Scenario(Struct, frozen=True, kw_only=True):
    """What goes wrong, what should become of it, and the code that makes it so. `play` raises Missing."""

    name: str
    title: str
    happens: str
    should: str
    play: Callable[[Stage], Awaitable[None]]


class Player:
    """Knows the last ledger of each scenario, as long as the process lives."""

    def __init__(self, stand: Stand, scenarios: Sequence[Scenario]) -> None:
        self._stand, self.scenarios = stand, {one.name: one for one in scenarios}
        self.ledgers: dict[str, Ledger] = {}
        """The newest last."""
        self._playing: asyncio.Task[Ledger] | None = None

    def begin(self, name: str) -> asyncio.Task[Ledger]:
        """Play one, in the background. Raises InvalidInput."""
        scenario = self.scenarios.get(name)
        if scenario is None:
            raise InvalidInput(f"there is no scenario {name!r}: choose one of {', '.join(self.scenarios)}")
        if self._playing is not None and not self._playing.done():
            raise InvalidInput("another scenario is being played: wait until its ledger is closed")
        self._playing = asyncio.create_task(self._play(scenario), name=f"scenario {name}")
        return self._playing

    async def close(self) -> None:
        """End the one that is being played."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.wait({self._playing})

    async def _play(self, scenario: Scenario) -> Ledger:
        clock = SystemClock()
        began = clock.monotonic()
        ledger = Ledger(name=scenario.name, title=scenario.title, began_at=as_datetime(clock.now()))
        self.ledgers.pop(scenario.name, None)
        self.ledgers[scenario.name] = ledger
        try:
            async with asyncio.timeout(LONGEST), Stage.on(self._stand, ledger) as stage:
                await scenario.play(stage)
        except Missing as error:
            ledger.missing = str(error)
        except Overdue as error:
            ledger.failure = str(error)
        except TimeoutError:
            ledger.failure = f"it took longer than {LONGEST:.0f} s"
        except Exception as error:  # a scenario that breaks is a proof that failed
            log.exception("scenario %s", scenario.name)
            ledger.failure = f"{type(error).__name__}: {error}"
        finally:
            ledger.took, ledger.is_over = clock.monotonic() - began, True
            await self._tidy()
        return ledger

    async def _tidy(self) -> None:
        """Nothing is away any more."""
        stand = self._stand
        stand.directory.faults.clear()
        await stand.primary.come_back()
        if stand.redis is not None:
            await stand.redis.mend()
        await stand.keys.begin()
        if stand.directory.service.balance("ENTRIES_WRITE", ISPB) <= 0:
            stand.directory.service.set_balance("ENTRIES_WRITE", ISPB, 36_000)
