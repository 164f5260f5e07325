"""Planted data: valid numbers and secrets from a seed, and the texts that programs put them into."""

import base64
import json
import string
import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple
from urllib.parse import quote, quote_plus

SEED = 20261116
CAPITALS = string.digits + string.ascii_uppercase
WORDS = "ada grace alan katherine edsger joão conceição lúcia".split()


class Planted(NamedTuple):
    """A text with a value that must not be seen, and how the value stands there."""

    kind: str
    carrier: str
    text: str
    value: str


# -- values


def digits(chance: Random, count: int) -> str:
    return "".join(chance.choices(string.digits, k=count))


def checked(base: str, weights: int) -> str:
    """With two check digits, modulo 11. `weights`: the highest one."""
    for _ in range(2):
        scale = [2 + index % (weights - 1) for index in range(len(base))]
        rest = sum((ord(c) - 48) * weight for c, weight in zip(reversed(base), scale, strict=True)) % 11
        base += str(0 if rest < 2 else 11 - rest)
    return base


def cpf(chance: Random) -> str:
    bare = checked(digits(chance, 9), 12)
    dotted = f"{bare[:3]}.{bare[3:6]}.{bare[6:9]}-{bare[9:]}"
    return chance.choice([bare, dotted, f"{bare[:9]}-{bare[9:]}", dotted.replace(".", " ").replace("-", " ")])


def cnpj(chance: Random) -> str:
    bare = checked("".join(chance.choices(chance.choice([string.digits, CAPITALS]), k=12)), 9)
    shaped = f"{bare[:2]}.{bare[2:5]}.{bare[5:8]}/{bare[8:12]}-{bare[12:]}"
    return chance.choice([bare, shaped, shaped.lower()])


def phone(chance: Random) -> str:
    area, first, last = chance.choice(["11", "21", "61", "85"]), "9" + digits(chance, 4), digits(chance, 4)
    forms = [
        f"+55{area}{first}{last}",
        f"+55 {area} {first}-{last}",
        f"+55 ({area}) {first}-{last}",
        f"({area}) {first}-{last}",
        f"{area} {first}-{last}",
        f"55{area}{first}{last}",
        f"+55 {area} 3{digits(chance, 3)}-{last}",
        f"+1 415 555 {last}",
        f"+44{digits(chance, 10)}",
    ]
    return chance.choice(forms)


def email(chance: Random) -> str:
    local = chance.choice(["{}.{}", "{}_{}", "{}+{}", "{}{}"]).format(chance.choice(WORDS), digits(chance, 3))
    return f"{local}@{chance.choice(['banco', 'mail', 'corp-x'])}.{chance.choice(['com', 'com.br', 'io'])}"


def evp(chance: Random) -> str:
    raw = f"{chance.getrandbits(128):032x}"
    made = f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{chance.choice('89ab')}{raw[17:20]}-{raw[20:]}"
    return chance.choice([made, made.upper()])


def card(chance: Random) -> str:
    starts = [("4", 16), ("51", 16), ("2221", 16), ("37", 15), ("36", 14), ("6011", 16), ("6062", 16), ("4", 19)]
    start, size = chance.choice(starts)
    base = start + digits(chance, size - len(start) - 1)
    total = sum(sum(divmod(int(c) * 2, 10)) for c in base[::-2]) + sum(int(c) for c in base[-2::-2])
    made = base + str(-total % 10)
    if size != 16:
        return made
    return chance.choice([made, *(sign.join(made[at : at + 4] for at in range(0, 16, 4)) for sign in " -")])


def jwt(chance: Random) -> str:
    parts = (json.dumps({"alg": "HS256"}), json.dumps({"sub": digits(chance, 9)}))
    coded = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*coded, secret(chance, 43)])


def secret(chance: Random, size: int = 24) -> str:
    return "".join(chance.choices(string.ascii_letters + string.digits + "_", k=size - 2)) + "7x"


def brcode(chance: Random) -> str:
    """What a payer copies: it holds the key, the name and the city of who is paid."""
    key = chance.choice([evp, cpf, email, phone])(chance)
    payee = "5204000053039865802BR5903ADA6006RECIFE6304"
    return f"00020126580014br.gov.bcb.pix01{len(key):02d}{key}{payee}{chance.getrandbits(16):04X}"


VALUES: dict[str, Callable[[Random], str]] = {
    "cpf": cpf,
    "cnpj": cnpj,
    "phone": phone,
    "email": email,
    "evp": evp,
    "card": card,
    "token": jwt,
}


# -- what they stand in: names that say nothing, so that the value itself must be known


def _raised(value: str) -> str:
    try:
        try:
            raise KeyError(value)
        except KeyError as error:
            raise ValueError(f"cannot pay {value}: refused") from error
    except ValueError as error:
        return "".join(traceback.format_exception(error))


CARRIERS: dict[str, Callable[[str], str]] = {
    "alone": lambda v: v,
    "sentence": lambda v: f"the payer {v}, of branch 0001, was refused.",
    "brackets": lambda v: f"payer ({v}) [{v}] <{v}> '{v}'",
    "json": lambda v: json.dumps({"id": 7, "data": {"list": [v, None]}}),
    "json in utf-8": lambda v: json.dumps({"data": v}, ensure_ascii=False),
    "json in json": lambda v: json.dumps({"body": json.dumps({"data": [v]})}),
    "json in json in json": lambda v: json.dumps([json.dumps([json.dumps([v])])]),
    "key of json": lambda v: json.dumps({v: {"balance": 10}}),
    "url query": lambda v: f"GET https://dict.example/v2/entries?a=1&data={quote_plus(v)}&b=2 -> 404",
    "url path": lambda v: f"https://dict.example/v2/entries/{quote(v, safe='')}/claims",
    "url in url": lambda v: f"/login?next={quote(f'/x?q={quote_plus(v)} y', safe='')}",
    "repr of an error": lambda v: repr(ValueError(f"line 1\n{v}\tof the file", {"data": v})),
    "error": lambda v: f"ValueError: {v}",
    "traceback": _raised,
    "parameters of sql": lambda v: f"[SQL: INSERT INTO t VALUES (%s, %s)] [parameters: ({v!r}, 42, None)]",
    "named parameters": lambda v: f"[parameters: {{'data_1': {v!r}, 'n': 1}}]",
    "detail of postgresql": lambda v: f"DETAIL:  Key (tenant, document)=(7, {v}) already exists.",
    "logfmt": lambda v: f'level=error data={v} note="payer {v}" took=3ms',
    "xml": lambda v: f"<Entry><Data>{v}</Data><At a='{v}'/></Entry>",
    "csv": lambda v: f"2026-11-16;{v};1.234,56",
    "bytes": lambda v: repr(f"data: {v}\r\n".encode()),
}


def planted(count: int = 10_000, seed: int = SEED) -> Iterator[Planted]:
    chance = Random(seed)
    pairs = [(kind, carrier) for kind in VALUES for carrier in CARRIERS]
    for number in range(count):
        kind, carrier = pairs[number % len(pairs)]
        value = VALUES[kind](chance)
        if carrier == "bytes" and not value.isascii():  # UTF-8 as \xc3: nobody reads it there
            value = value.encode("ascii", "ignore").decode()
        yield Planted(kind, carrier, CARRIERS[carrier](value), value)


# -- secrets, which are known by what stands before them alone

NAMES = "password userPassword PASSWORD senha client_secret X-Api-Key accessToken db_password apiKey pin".split()
SECRETS: dict[str, Callable[[str, str], str]] = {
    "json": lambda n, v: json.dumps({"a": 1, n: v, "b": "c"}),
    "json in json": lambda n, v: json.dumps(json.dumps({n: v, "b": [1]})),
    "list": lambda n, v: json.dumps({n: [v, {"deep": v}], "b": 1}),
    "repr": lambda n, v: f"Config({ {n: v, 'b': 1}!r})",
    "keyword": lambda n, v: f"connect(host='x', {n.replace('-', '_')}={v!r}, port=1)",
    "wrapped": lambda n, v: f"Settings({n}=SecretStr('{v} {v}'), port=1)",
    "query": lambda n, v: f"https://x.example/cb?state=1&{n}={v}&scope=all",
    "query in a query": lambda n, v: "/r?next=" + quote(f"https://x.example/cb?{n}={v}&scope=all", safe=""),
    "logfmt": lambda n, v: f"msg=hello {n}={v} took=1",
    "header": lambda n, v: f"{n}: {v}",
    "after an escape": lambda n, v: repr(f"headers:\n{n}: {v}"),
    "xml": lambda n, v: f'<ns:{n} type="x">{v} {v}</ns:{n}>',
    "detail of postgresql": lambda n, v: f"Key ({n})=({v}) already exists.",
    "cut off": lambda n, v: f'{{"{n}": "{v}'[:-3],
}
LOOSE: dict[str, Callable[[str], str]] = {
    "bearer": lambda v: f"Authorization: Bearer {v}",
    "bearer alone": lambda v: f"sent bearer {v} to the bank",
    "bearer in repr": lambda v: repr({"headers": [("authorization", f"Bearer {v}")]}),
    "basic": lambda v: f"curl: sent 'Basic {v}=='",
    "basic in a header": lambda v: f"{{'Authorization': 'Basic {v}=='}}",
    "cookie": lambda v: f"Cookie: a=1; sid={v}; b=2",
    "url": lambda v: f"cannot connect to postgresql://app:{v}@db.example.com:5432/bank: refused",
    "amqp": lambda v: f"amqp://:{v}@queue/",
}


def planted_secrets(count: int = 3_000, seed: int = SEED) -> Iterator[Planted]:
    chance = Random(seed)
    pairs = [(name, carrier) for name in NAMES for carrier in SECRETS]
    for number in range(count):
        name, carrier = pairs[number % len(pairs)]
        value = secret(chance)
        yield Planted(name, carrier, SECRETS[carrier](name, value), value)
        loose = [*LOOSE][number % len(LOOSE)]
        value = secret(chance)
        yield Planted("loose", loose, LOOSE[loose](value), value)


# -- what must stay readable


def innocent(seed: int = SEED) -> dict[str, list[str]]:
    """Numbers and words that look a little like the others, by kind."""
    chance = Random(seed)
    many = range(1_000)

    def uuid7() -> str:
        raw = f"{chance.getrandbits(128):032x}"
        return f"019a{raw[:4]}-{raw[4:8]}-7{raw[9:12]}-{chance.choice('89ab')}{raw[13:16]}-{raw[16:28]}"

    return {
        "times": [f"2026-{1 + n % 12:02d}-{1 + n % 28:02d}T{n % 24:02d}:{n % 60:02d}:38.{n:06d}+00:00" for n in many],
        "unix seconds": [str(1_763_285_018 + chance.randrange(10**7)) for _ in many],
        "unix milliseconds": [str(1_763_285_018_000 + chance.randrange(10**10)) for _ in many],
        "unix microseconds": [str(1_763_285_018_000_000 + chance.randrange(10**13)) for _ in many],
        "unix nanoseconds": [str(1_763_285_018_000_000_000 + chance.randrange(10**16)) for _ in many],
        "run ids": [uuid7() for _ in many],
        "hashes": [f"{chance.getrandbits(size):0{size // 4}x}" for size in (128, 160, 256, 512) for _ in many],
        "traces": [f"00-{chance.getrandbits(128):032x}-{chance.getrandbits(64):016x}-01" for _ in many],
        "amounts": [f"R$ {chance.randrange(10**9):,}.{n % 100:02d}" for n in many],
        "cents": [str(chance.randrange(10**9)) for _ in many],
        "fractions": [repr(chance.random() * 10 ** (n % 4)) for n in many],
        "end to end ids": [f"E{digits(chance, 8)}202611160923{secret(chance, 11)}" for _ in many],
        "orders": [f"order-{n:06d} PED-2026-{n:05d}" for n in many],
        "versions": [f"python 3.12.{n % 9}, postgresql 17.{n % 5}, v1.22.333-4" for n in many],
        "addresses": [f"10.{n % 255}.0.1:5432 0x7f{chance.getrandbits(40):010x} [::1]:80" for n in many],
        "frames": [f'File "/app/shop/pay.py", line {n}, in charge_{n}' for n in many],
        "places": [f"CEP 01310-{n:03d}, ag. 0001, conta {n:06d}-7" for n in many],
        "barcodes": [digits(chance, 44 + n % 4) for n in many],
        "sentences": ["basic authentication failed", "the bearer of bad news", "no secret in here; a token ring"],
        "code": ["if pin > 5: return", "@app.get('/x')", "a <- b", "x: int = 3", "user@host", "root@laptop"],
    }


def unlucky(seed: int = SEED) -> dict[str, list[str]]:
    """Numbers of the length of others: a check digit cannot tell all of them apart."""
    chance = Random(seed)
    return {
        "11 digits": [digits(chance, 11) for _ in range(10_000)],
        "14 digits": [digits(chance, 14) for _ in range(10_000)],
        "16 digits": [digits(chance, 16) for _ in range(10_000)],
        "14 capitals": ["".join(chance.choices(CAPITALS, k=12)) + digits(chance, 2) for _ in range(10_000)],
    }
