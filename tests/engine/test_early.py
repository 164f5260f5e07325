"""A job whose call is under way before anything is written of it has little; whoever asks for more has it all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batuta import job
from batuta.engine.run.jobs import _GIVEN, _LEAN, EarlyRun, JobWorkflow
from batuta.engine.run.owned_run import OwnedRun
from batuta.ids import new_run_id
from batuta.journal.records import Message, MessageKind, Run, RunKind, StoredRun
from batuta.journal.states import RunState
from batuta.settings import Settings

SLOTS = {name for kind in OwnedRun.__mro__[:-1] for name in vars(kind)["__slots__"]}
LATER = sorted(SLOTS.difference(_LEAN, _GIVEN))


@job
async def nothing() -> None: ...


def early_run() -> EarlyRun:
    run_id = new_run_id()
    names = (run_id, str(run_id), run_id, RunKind.JOB, "nothing", "default")
    values: list[Any] = [*names, 0, RunState.RUNNING, 3, -1, "me", None, 77, None, None, 0, "", [], "", "{}", "null"]
    row = Run(*values)
    start = Message(message_id=f"start:{run_id}", kind=MessageKind.START)
    host = SimpleNamespace(store=SimpleNamespace(namespace="here"), settings=Settings(), known=None)
    return EarlyRun(cast(Any, host), JobWorkflow(nothing), StoredRun(row, [], [start], []))


def test_a_job_run_has_its_attributes_from_the_beginning() -> None:
    run = early_run()
    for name in (*_LEAN, *_GIVEN):
        getattr(run, name)
    assert not run._grown


@pytest.mark.parametrize("name", LATER)
def test_asking_for_more_makes_it_a_whole_run(name: str) -> None:
    run = early_run()
    run.head, run.leaving = 1, True
    getattr(run, name)
    assert run._grown
    assert (run.head, run.leaving, run.epoch, run.created_at) == (1, True, 3, 77)
    assert (run.identity.id, run.identity.namespace) == (str(run.run_id), "here")
    assert not run.inbox.is_new(run.message)


@pytest.mark.parametrize("name", LATER)
def test_a_setting_once_made_stays(name: str) -> None:
    run, value = early_run(), object()
    setattr(run, name, value)
    assert run.created_at == 77
    assert getattr(run, name) is value


def test_an_unknown_attribute_of_a_run_is_an_error() -> None:
    run = early_run()
    with pytest.raises(AttributeError):
        _ = run.colour  # type: ignore[attr-defined]  # that is what is tested
    assert not run._grown
