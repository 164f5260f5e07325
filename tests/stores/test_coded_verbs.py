"""No verb of a store passes by its codecs unseen."""

from __future__ import annotations

import inspect

from batuta.codecs import Encryption, Keys
from batuta.ids import new_run_id
from batuta.journal.records import Change, Effects, Move, Successor, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import CallerTransaction, Heartbeat, Store, Transaction
from batuta.stores.coded.handles import CodedCallerTransaction, CodedHeartbeat, CodedTransaction
from batuta.stores.coded.store import PASSED, CodedStore, coded
from batuta.stores.memory import MemoryStore


def verbs_of(protocol: type) -> set[str]:
    """All that a store must have, from its parts, too."""
    parts = [part for part in protocol.__mro__ if part.__module__.startswith("batuta.")]
    return {name for part in parts for name in (*vars(part), *part.__annotations__) if not name.startswith("_")}


def test_every_verb_is_coded_or_known_to_carry_no_payload() -> None:
    coded = {name for name, _ in inspect.getmembers(CodedStore, inspect.isfunction)} | {"namespace"}
    assert verbs_of(Store) - coded - PASSED == set()
    assert PASSED & coded == set()


def test_handles_of_the_coded_store_have_every_verb() -> None:
    for protocol, ours in (
        (CallerTransaction, CodedCallerTransaction),
        (Heartbeat, CodedHeartbeat),
        (Transaction, CodedTransaction),
    ):
        assert {name for name in vars(protocol) if not name.startswith("_")} <= set(dir(ours))


def test_verbs_take_what_those_of_the_protocol_take() -> None:
    for name in verbs_of(Store) & set(vars(CodedStore)):
        theirs, ours = (inspect.signature(getattr(kind, name)).parameters for kind in (Store, CodedStore))
        assert list(theirs) == list(ours), name
        assert [one.default for one in theirs.values()] == [one.default for one in ours.values()], name


async def test_what_follows_a_run_that_was_deleted_is_refused_as_without_codecs() -> None:
    store = coded(MemoryStore(), [Encryption(Keys.new("k1"))])
    after = Effects(successor=Successor(run_id=new_run_id(), name="next", queue="default", start="{}"))
    change = Change(run_id=new_run_id(), epoch=1, head=0, move=Move(RunState.CONTINUED), effects=after)
    assert await store.commit("worker", [change]) == {0: Verdict.REFUSED}
