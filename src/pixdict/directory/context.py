"""What the rules of one request know: who asks, what time it is, and what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from batuta.clock import as_datetime
from batuta.ids import new_secret
from pixdict.dict.problems import DirectoryRefused
from pixdict.directory.settings import DirectorySettings, Participant
from pixdict.directory.storage import Storage


class Context(Struct, frozen=True):
    """One request."""

    storage: Storage
    settings: DirectorySettings
    participants: Mapping[str, Participant]
    requester: str
    """The ISPB of who asks; it is known."""
    now: int
    """Microseconds, cut to milliseconds: what answers tell is what is stored."""
    correlation_id: str

    @property
    def moment(self) -> datetime:
        """`now` for documents."""
        return as_datetime(self.now)

    @property
    def envelope(self) -> dict[str, Any]:
        """The fields that begin every answer."""
        return {"response_time": self.moment, "correlation_id": self.correlation_id}

    def acts_for(self, participant: str) -> bool:
        """Whether who asks is that participant or its direct participant."""
        known = self.participants.get(participant)
        return known is not None and self.requester in (participant, known.direct)

    def check_acts_for(self, participant: str) -> None:
        """Refuse who asks in the name of others. Raises DirectoryRefused."""
        if participant not in self.participants:
            raise DirectoryRefused("ParticipantInvalid", f"{participant} is no participant of the directory")
        if not self.acts_for(participant):
            raise DirectoryRefused("Forbidden", f"{self.requester} may not act for {participant}")

    def indirect_participants(self) -> list[str]:
        """Those that who asks is the direct participant of."""
        return [ispb for ispb, known in self.participants.items() if known.direct == self.requester]


def random_uuid() -> UUID:
    """A UUID of version 4."""
    return UUID(bytes=new_secret(), version=4)
