"""The machine of claims, compared with the rules as a table, tuple by tuple.

The table is written out here by hand: one line is one allowed act, as the official document tells it.
"""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from pixdict.dict.claims import Action, ClaimStatus, Ends, Move, Role, decide, ends_of

T0 = datetime(2026, 1, 2, tzinfo=UTC)

# type, state, act, by whom, reason, next state, from which day on
ALLOWED = """
O OPEN               acknowledge donor   -                 WAITING_RESOLUTION 0
P OPEN               acknowledge donor   -                 WAITING_RESOLUTION 0
O WAITING_RESOLUTION confirm     donor   USER_REQUESTED    CONFIRMED          0
P WAITING_RESOLUTION confirm     donor   USER_REQUESTED    CONFIRMED          0
P WAITING_RESOLUTION confirm     donor   ACCOUNT_CLOSURE   CONFIRMED          0
O WAITING_RESOLUTION confirm     donor   DEFAULT_OPERATION CONFIRMED          7
P OPEN               cancel      donor   USER_REQUESTED    CANCELLED          0
P OPEN               cancel      claimer USER_REQUESTED    CANCELLED          0
P OPEN               cancel      donor   FRAUD             CANCELLED          0
P OPEN               cancel      claimer FRAUD             CANCELLED          0
P OPEN               cancel      claimer ACCOUNT_CLOSURE   CANCELLED          0
P OPEN               cancel      claimer RFB_VALIDATION    CANCELLED          0
P OPEN               cancel      claimer RECONCILIATION    CANCELLED          0
P OPEN               cancel      donor   DEFAULT_OPERATION CANCELLED          7
P WAITING_RESOLUTION cancel      donor   USER_REQUESTED    CANCELLED          0
P WAITING_RESOLUTION cancel      claimer USER_REQUESTED    CANCELLED          0
P WAITING_RESOLUTION cancel      donor   FRAUD             CANCELLED          0
P WAITING_RESOLUTION cancel      claimer FRAUD             CANCELLED          0
P WAITING_RESOLUTION cancel      claimer ACCOUNT_CLOSURE   CANCELLED          0
P WAITING_RESOLUTION cancel      claimer RFB_VALIDATION    CANCELLED          0
P WAITING_RESOLUTION cancel      donor   DEFAULT_OPERATION CANCELLED          7
P CONFIRMED          cancel      claimer FRAUD             CANCELLED          0
P CONFIRMED          cancel      claimer RECONCILIATION    CANCELLED          0
P CONFIRMED          cancel      claimer RFB_VALIDATION    CANCELLED          0
O OPEN               cancel      claimer USER_REQUESTED    CANCELLED          0
O OPEN               cancel      claimer ACCOUNT_CLOSURE   CANCELLED          0
O OPEN               cancel      claimer FRAUD             CANCELLED          0
O OPEN               cancel      claimer RECONCILIATION    CANCELLED          0
O OPEN               cancel      claimer RFB_VALIDATION    CANCELLED          0
O OPEN               cancel      claimer DEFAULT_OPERATION CANCELLED          30
O OPEN               cancel      donor   FRAUD             CANCELLED          0
O WAITING_RESOLUTION cancel      claimer USER_REQUESTED    CANCELLED          0
O WAITING_RESOLUTION cancel      claimer ACCOUNT_CLOSURE   CANCELLED          0
O WAITING_RESOLUTION cancel      claimer FRAUD             CANCELLED          0
O WAITING_RESOLUTION cancel      claimer RECONCILIATION    CANCELLED          0
O WAITING_RESOLUTION cancel      claimer RFB_VALIDATION    CANCELLED          0
O WAITING_RESOLUTION cancel      claimer DEFAULT_OPERATION CANCELLED          30
O WAITING_RESOLUTION cancel      donor   FRAUD             CANCELLED          0
O CONFIRMED          cancel      claimer USER_REQUESTED    CANCELLED          0
O CONFIRMED          cancel      claimer ACCOUNT_CLOSURE   CANCELLED          0
O CONFIRMED          cancel      claimer FRAUD             CANCELLED          0
O CONFIRMED          cancel      claimer RECONCILIATION    CANCELLED          0
O CONFIRMED          cancel      claimer RFB_VALIDATION    CANCELLED          0
O CONFIRMED          cancel      claimer DEFAULT_OPERATION CANCELLED          30
O CONFIRMED          cancel      donor   FRAUD             CANCELLED          0
O CONFIRMED          complete    claimer -                 COMPLETED          14
P CONFIRMED          complete    claimer -                 COMPLETED          0
"""
TYPES = {"O": "OWNERSHIP", "P": "PORTABILITY"}
ROWS = [line.split() for line in ALLOWED.strip().splitlines()]
RULES = {
    (TYPES[kind], state, act, by, None if reason == "-" else reason): (to, int(day))
    for kind, state, act, by, reason, to, day in ROWS
}
REASONS = "USER_REQUESTED ACCOUNT_CLOSURE FRAUD DEFAULT_OPERATION RECONCILIATION RFB_VALIDATION BRANCH_TRANSFER".split()
ROLES = {"donor": Role.DONOR, "claimer": Role.CLAIMER}
DAYS = (0, 6.999, 7, 13.999, 14, 29.999, 30)


def expected(kind: str, state: str, act: str, by: frozenset[str], reason: str | None, day: float) -> str:
    """The next state or the problem, from the table alone."""
    if not by:
        return "Forbidden"
    same_pair = {key for key in RULES if key[:3] == (kind, state, act)}
    if not same_pair:
        return "ClaimOperationInvalid"
    mine = {key for key in same_pair if key[3] in by}
    if not mine:
        return "Forbidden"
    found = [RULES[key] for key in mine if key[4] == reason]
    if not found:
        return "InvalidReason"
    if day >= min(first for _, first in found):
        return found[0][0]
    return "ClaimResolutionPeriodNotEnded" if found[0][1] == 7 else "ClaimCompletionPeriodNotEnded"


def test_the_table_is_complete() -> None:
    assert len(RULES) == len(ROWS) == 47


@pytest.mark.parametrize("kind", TYPES.values())
@pytest.mark.parametrize("state", ClaimStatus)
def test_every_act_in_every_state_does_what_the_table_says(kind: str, state: str) -> None:
    sides = [frozenset(), frozenset({"donor"}), frozenset({"claimer"}), frozenset({"donor", "claimer"})]
    compared = 0
    for act, by, day in itertools.product(Action, sides, DAYS):
        for reason in REASONS if act in ("confirm", "cancel") else [None]:
            roles = frozenset(ROLES[one] for one in by)
            got = decide(kind, state, act, roles, reason, T0 + timedelta(days=day), ends_of(kind, T0))
            result = got.to if isinstance(got, Move) else got
            assert result == expected(kind, state, act, by, reason, day), (act, sorted(by), reason, day)
            compared += 1
    assert compared == len(sides) * len(DAYS) * (2 * len(REASONS) + 2)


def test_periods_end_after_seven_fourteen_and_thirty_days() -> None:
    days = [timedelta(days=number) for number in (7, 14, 30)]
    assert ends_of("OWNERSHIP", T0) == Ends(*(T0 + day for day in days))
    assert ends_of("PORTABILITY", T0) == Ends(T0 + days[0], None, None)
