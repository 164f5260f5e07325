"""Ten thousand random operations: a client that only sees answers knows every balance."""

import random
from collections import defaultdict
from typing import Any
from uuid import UUID, uuid4

import pytest

from pixdict.dict import messages
from pixdict.dict.buckets import Refill
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings, Participant
from tests.pixdict.directory.kit import CNPJ, CPF, START, A, Answer, B, Bank, account, person, service
from tests.pixdict.directory.test_antiscan import CATEGORIES, EVERYONE, TABLE, USER, USER_V2

MINUTE = 60_000_000
LIMITS = {
    name: (int(refill), int(capacity), int(period) * 1_000_000)
    for line in TABLE.split("\n")
    for name, refill, capacity, period in (row.split() for row in line.split("|") if row.strip())
}
OPERATIONS = 10_000


class Client:
    """Counts tokens by the rules as the manual tells them, on its own: nothing of the directory's code is used."""

    def __init__(self, category: str, refill: Refill) -> None:
        self.limits = LIMITS | dict.fromkeys((EVERYONE, "ENTRIES_STATISTICS_READ"), (*CATEGORIES[category], MINUTE))
        self.refill = refill
        self.tokens: dict[tuple[str, str], int] = {}
        self.at: dict[tuple[str, str], int] = defaultdict(lambda: START)

    def limit(self, policy: str, payer: str) -> tuple[int, int, int]:
        if payer:
            return (2, 100, MINUTE) if len(payer) == 11 else (20, 1_000, MINUTE)
        return self.limits[policy]

    def balance(self, policy: str, payer: str, now: int) -> int:
        refill, capacity, period = self.limit(policy, payer)
        bucket = (policy, payer)
        tokens, then = self.tokens.get(bucket, capacity), self.at[bucket]
        if self.refill is Refill.STEPPED:
            gained = (now // period - then // period) * refill
        else:
            gained = now * refill // period - then * refill // period
        self.tokens[bucket], self.at[bucket] = min(capacity, tokens + gained), now
        return self.tokens[bucket]

    def spend(self, policy: str, payer: str, cost: int, now: int) -> None:
        capacity = self.limit(policy, payer)[1]
        self.tokens[policy, payer] = min(capacity, self.balance(policy, payer, now) - cost)


class Player:
    """Does random things, and predicts each refusal for lack of tokens before it asks."""

    def __init__(self, made: Service, category: str, refill: Refill, seed: int) -> None:
        self.chance = random.Random(seed)
        self.service, self.a, self.b = made, Bank(made, A), Bank(made, B)
        self.client = Client(category, refill)
        self.keys = [f"k{n}@b.com" for n in range(30)]
        self.claims: list[UUID] = []
        self.payments: list[tuple[str, str, bool]] = []
        self.refused = 0

    def step(self) -> None:
        acts = [self.write, self.look_up, self.pay, self.read, self.check, self.act, self.wait]
        self.chance.choices(acts, weights=[3, 8, 2, 3, 2, 1, 1])[0]()

    def expect(self, answer: Answer, *buckets: tuple[str, str]) -> None:
        now = self.service.now()
        admitted = all(self.client.balance(*bucket, now) > 0 for bucket in buckets)
        assert (answer.status != 429) is admitted, buckets
        self.refused += not admitted
        if len(buckets) == 2:
            costs: tuple[int, ...] = {200: (1, 1), 404: (20, 3)}.get(answer.status, (0, 0))
        else:
            costs = (0,) if answer.status in (429, 500) else (1,)
        for bucket, cost in zip(buckets, costs, strict=True):
            self.client.spend(*bucket, cost, now)

    def write(self) -> None:
        key = self.chance.choice(self.keys)
        if self.chance.random() < 0.5:
            answer = self.a.create(key, "EMAIL", at=account(A, str(self.chance.randrange(10))))
        else:
            answer = self.a.delete(key)
        self.expect(answer, ("ENTRIES_WRITE", ""))

    def look_up(self) -> None:
        payer, key = self.chance.choice([CPF, CNPJ, "99988877766"]), self.chance.choice(self.keys)
        key = key if self.chance.random() < 0.7 else str(uuid4())
        payment = f"E{self.chance.randrange(10**9)}"
        # Keys of B, so that A may look them up.
        if self.chance.random() < 0.5:
            self.b.create(
                key, "EMAIL", at=account(B, str(self.chance.randrange(10**6))), owner=person("99988877766", "M")
            )
        answer = self.a.look_up(key, payer, payment)
        user = USER if "@" in key else USER_V2
        self.expect(answer, (user, payer), (EVERYONE, ""))
        if answer.status == 200:
            self.payments.append((payment, payer, user == USER))

    def pay(self) -> None:
        if self.payments:
            payment, payer, by_user = self.payments.pop(self.chance.randrange(len(self.payments)))
            now = self.service.now()
            for _ in range(self.chance.randrange(1, 3)):
                self.service.payment_sent(payment, payer)
            self.client.spend(USER if by_user else USER_V2, payer, -1 if len(payer) == 11 else -2, now)
            self.client.spend(EVERYONE, "", -1, now)

    def read(self) -> None:
        if self.chance.random() < 0.3:
            self.expect(self.a.ask("listPolicies"), ("POLICIES_LIST", ""))
        else:
            name = self.chance.choice([*LIMITS, "NOTHING"])
            self.expect(self.a.ask("getPolicy", value=name), ("POLICIES_READ", ""))

    def check(self) -> None:
        keys = self.chance.choice([[], ["x"], self.keys[:3]])
        self.expect(self.a.ask("checkKeys", messages.CheckKeysRequest(keys=keys)), ("KEYS_CHECK", ""))

    def act(self) -> None:
        self.expect(self.a.act("acknowledge", uuid4()), ("CLAIMS_WRITE", ""))
        role: dict[str, Any] = self.chance.choice([{}, {"IsDonor": "true"}])
        policy = "CLAIMS_LIST_WITH_ROLE" if role else "CLAIMS_LIST_WITHOUT_ROLE"
        self.expect(self.a.ask("listClaims", Participant=A, **role), (policy, ""))

    def wait(self) -> None:
        self.service.advance(self.chance.choice([0.001, 1, 7, 59.999, 60]))

    def compare(self) -> None:
        now = self.service.now()
        for policy, payer in list(self.client.tokens):
            assert self.a.tokens(policy, payer) == self.client.balance(policy, payer, now), (policy, payer)


@pytest.mark.parametrize(("refill", "category"), [(Refill.STEPPED, "G"), (Refill.CONTINUOUS, "H")])
def test_a_client_predicts_every_balance(refill: Refill, category: str) -> None:
    participants = {A: Participant(category=category), B: Participant()}
    player = Player(service(DirectorySettings(participants=participants, refill=refill)), category, refill, seed=23)
    for number in range(OPERATIONS // 2):
        player.step()
        if number % 50 == 0:
            player.compare()
    player.compare()
    assert player.refused > 50, "buckets ran dry, too"
