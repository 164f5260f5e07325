"""The rules of redaction: names, patterns of one's own, the form of values, and what holds for any text."""

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.errors import InvalidInput
from batuta.redaction import FIELDS, PATTERNS, USUAL, Pattern, Redactor, from_env
from batuta.redaction.redactor import DEEPEST
from tests.long import examples
from tests.redaction.corpus import CARRIERS, NAMES, SECRETS, planted, planted_secrets

usual, everything = Redactor(), Redactor(PATTERNS)
mine = Redactor(["evp", Pattern.of("badge", r"\bB-[0-9]{4}\b")], ["nickname", "motherName"])

TEXTS = [one.text for one in (*planted(147), *planted_secrets(50)) if one.carrier != "traceback"]
PIECES = [
    *"[]{}()<>\"'\\/=:;,.&%@+- \n\t0159aeTnx_",
    *("52998224725", "529.982.247-25", "4111111111111111", "5511987654321", "ada@x.com", "eyJa.b.c", "Bearer abc12345"),
    *("password=", '"cpf": ', "\\n", "%20", "[cpf]", "[password]", "://a:", "0.", "token", "Authorization: ", "000201"),
    *("<cpf>", "</cpf>", "pin", "019a3b4c-1234-7123-8123-123456789012", "deadbeef" * 4),
]
texts = (
    st.text()
    | st.sampled_from(TEXTS)
    | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
    | st.tuples(st.sampled_from(TEXTS), st.lists(st.sampled_from(PIECES), max_size=4)).map(lambda t: t[0].join(t[1]))
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.sampled_from([*FIELDS, *NAMES, "name", "value"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(text=texts)
@settings(derandomize=True, max_examples=examples(200), deadline=None)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    for redactor in (usual, everything, mine):
        shown = redactor.text(text)
        assert redactor.text(shown) == shown


def form(value: Any) -> Any:
    """What is left of a value without its leaves and keys."""
    if isinstance(value, dict):
        return [form(one) for one in value.values()]
    return [form(one) for one in value] if isinstance(value, list) else None


@given(value=values)
@settings(derandomize=True, max_examples=examples(100), deadline=None)
def test_json_stays_json_in_its_form(value: Any) -> None:
    shown = everything.value(value)
    assert json.loads(json.dumps(shown)) == shown
    assert form(shown) == form(value)
    assert everything.value(shown) == shown


@pytest.mark.parametrize("carrier", [name for name in SECRETS if name in ("json", "list")])
@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_is_json_stays_json_when_a_field_is_hidden(carrier: str, name: str) -> None:
    for text in (SECRETS[carrier](name, "hunter2"), json.dumps({"a": 1, name: 1234, "b": [name]})):
        shown = json.loads(usual.text(text))
        assert shown.keys() == json.loads(text).keys()
        assert "hunter2" not in str(shown)
        assert "1234" not in str(shown)


# -- by name


@pytest.mark.parametrize(
    "name", ["password", "userPassword", "USER_PASSWORD", "user-password", "Password2", "passwordHash"]
)
def test_a_field_is_found_however_its_name_is_written(name: str) -> None:
    assert usual.value({name: "x", "other": "x"}) == {name: "[password]", "other": "x"}


@pytest.mark.parametrize(
    "name", ["passwordless", "spin", "opinion", "cpfl", "tokenizer", "key", "name", "id", "run_id"]
)
def test_a_name_that_only_sounds_alike_is_none(name: str) -> None:
    assert usual.value({name: "x"}) == {name: "x"}


def test_all_leaves_of_a_field_are_hidden_and_the_rest_stays() -> None:
    value = {"cpf": {"number": "529", "valid": True, "old": [None, "", 7]}, "amount": 1999}
    hidden = {"number": "[cpf]", "valid": True, "old": [None, "", "[cpf]"]}
    assert usual.value(value) == {"cpf": hidden, "amount": 1999}


def test_keys_below_a_field_are_looked_at_too() -> None:
    value = {"contact_email": {"ada@example.com": {"seen": True, "note": "hers"}, "pin": 7}}
    hidden = {"[email]": {"seen": True, "note": "[email]"}, "pin": "[pin]"}
    assert usual.value(value) == {"contact_email": hidden}


def test_a_value_that_goes_by_the_name_of_a_field_is_hidden() -> None:
    assert usual.value([{"name": "cpf", "value": "1"}]) == [{"name": "cpf", "value": "[cpf]"}]
    assert usual.value({"key": "card-number", "value": [1]}) == {"key": "card-number", "value": ["[card_number]"]}
    assert usual.value({"name": "send_password", "value": "1"}) == {"name": "send_password", "value": "1"}


def test_keys_that_are_personal_data_are_hidden_and_stay_apart() -> None:
    value = {"52998224725": 1, "529.982.247-25": 2, "total": 3}
    assert usual.value(value) == {"[cpf]": 1, "[cpf] 2": 2, "total": 3}
    assert usual.value(value | {"[cpf]": 4}) == {"[cpf]": 1, "[cpf] 2": 2, "total": 3, "[cpf] 3": 4}


def test_numbers_are_known_too() -> None:
    assert usual.value([52998224725, 5511987654321, 4111111111111111]) == ["[cpf]", "[phone]", "[card]"]
    assert usual.value([1999, 0.52998224725, 10**5000, True]) == [1999, 0.52998224725, 10**5000, True]


def test_values_nested_too_deep_are_not_shown() -> None:
    value: Any = "secret"
    for _ in range(10 * DEEPEST):
        value = [value]
    assert "secret" not in str(usual.value(value))
    assert "secret" not in str(usual.value({"password": value}))


# -- of one's own


def test_patterns_and_fields_of_ones_own_are_added_to_the_usual() -> None:
    assert mine.text("B-1234 of 52998224725") == "[badge] of [cpf]"
    assert mine.value({"mother_name": "Ada", "nickName": 1}) == {"mother_name": "[mother_name]", "nickName": 1}
    alone = Redactor([Pattern.of("badge", r"B-[0-9]{4}")], usual=False)
    assert alone.text("B-1234 of 52998224725, password=x") == "[badge] of 52998224725, password=x"


def test_a_pattern_may_hide_a_part_of_what_it_finds() -> None:
    badge = Pattern.of("badge", r"badge (?P<shown>[0-9]+)", lambda match: match["shown"] != "1234")
    assert Redactor([badge]).text("badge 1234, badge 777") == "badge 1234, badge [badge]"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Redactor(["cpv"]), "no pattern 'cpv': there are password, token"),
        (lambda: Redactor(fields=["--"]), "field '--' has no word"),
        (lambda: Pattern.of("My badge", "x"), "short name"),
        (lambda: Pattern.of("badge", "("), "no regular expression"),
        (lambda: Pattern.of("badge", cast("str", b"x")), "no regular expression"),
        (lambda: Pattern.of("badge", "x*"), "must match neither nothing"),
        (lambda: Pattern.of("badge", "[a-z]+"), "must match neither nothing"),
    ],
)
def test_invalid_options_are_refused(make: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make()


# -- the variable


@pytest.mark.parametrize("text", ["", "0", "none", "off", "NO"])
def test_nothing_is_redacted_unless_asked_for(text: str) -> None:
    assert from_env({"BATUTA_REDACT": text}) is None


def test_the_variable_names_what_is_hidden() -> None:
    key = "123e4567-e12b-42d1-a456-426655440000"
    seen = {word: from_env({"BATUTA_REDACT": word}) for word in ("1", "on", "all", f"{__name__}:mine")}
    shown = {word: found.text(f"{key} B-1234") for word, found in seen.items() if found is not None}
    assert shown == {
        "1": f"{key} B-1234",
        "on": f"{key} B-1234",
        "all": "[evp] B-1234",
        f"{__name__}:mine": "[evp] [badge]",
    }


@pytest.mark.parametrize("text", ["cpf", "a:b:c", "no.such.module:x", "json:dumps", "json:nothing", ".x:y", "json:"])
def test_a_variable_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="BATUTA_REDACT="):
        from_env({"BATUTA_REDACT": text})


def test_every_pattern_has_its_mark_and_evp_is_not_usual() -> None:
    assert set(PATTERNS) - set(USUAL) == {"evp"}
    assert all(one.name == name for name, all_of_it in PATTERNS.items() for one in all_of_it)
    assert len(CARRIERS) > 20


@pytest.mark.parametrize(
    "text",
    [
        "529.982.247\u201125",
        "529.982.247\u201325",
        "529\u00a0982\u00a0247\u00a025",
        "529.982.247\u200b-25",
        "529.982.247\u00ad-25",
        "\uff15\uff12\uff19.982.247-25",
        "\u0665\u0662\u0669\u0669\u0668\u0662\u0662\u0664\u0667\u0662\u0665",
        "529.982.\u202a247-25",
    ],
)
def test_digits_hyphens_and_spaces_of_documents_and_other_scripts_are_known(text: str) -> None:
    assert usual.text(f"no account of {text}, n\u00e3o") == "no account of [cpf], n\u00e3o"


def test_a_text_with_nothing_to_hide_keeps_its_dashes() -> None:
    for text in ("2025\u20132026 \u2014 R$\u00a010", "\u0665\u0662"):
        assert usual.text(text) == text
    assert usual.text("a\u2013b 52998224725") == "a\u2013b [cpf]"


def test_the_password_of_a_url_may_have_an_at_in_it() -> None:
    assert usual.text("postgresql://ada:p@ss@w0rd@db/x") == "postgresql://ada:[password]@db/x"
    assert usual.text("http://ada:pw@db?to=a@b") == "http://ada:[password]@db?to=a@b"


def test_numbers_are_hidden_as_keys_and_as_floats_too() -> None:
    assert usual.value({52998224725: 1, 7: 2}) == {"[cpf]": 1, 7: 2}
    assert usual.value([52998224725.0, 1.5, 3.0, float("inf")]) == ["[cpf].0", 1.5, 3.0, float("inf")]


class Payer(NamedTuple):
    cpf: str


class Broken:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_what_is_not_of_json_is_a_text_when_it_has_something_to_hide() -> None:
    plain = Payer("")
    assert usual.value([Payer("52998224725"), {"52998224725"}, b"52998224725"]) == [
        "Payer(cpf='[cpf]')",
        "{'[cpf]'}",
        "b'[cpf]'",
    ]
    assert usual.value({"a": plain})["a"] is plain
    assert usual.value([Broken()]) == ["[Broken]"]


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_privacy.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match="broken_privacy:r' cannot be imported: ZeroDivisionError"):
        from_env({"BATUTA_REDACT": "broken_privacy:r"})


def test_the_message_of_an_error_is_shown_though_its_class_has_the_name_of_a_field() -> None:
    for text in ("AuthorizationError: the bank says 503", "shop.TokenException: expired"):
        assert usual.text(text) == text
    assert usual.text("PasswordError: password=hunter2 of 52998224725") == "PasswordError: password=[password] of [cpf]"
    assert usual.text("token_error: abc, tokenError=abc") == "token_error: [token], tokenError=[token]"


def test_a_quote_inside_a_value_of_sql_does_not_end_it() -> None:
    text = "SET password='it''s a ''secret'' one', note='' WHERE pin='' AND senha='x'"
    assert usual.text(text) == "SET password='[password]', note='' WHERE pin='' AND senha='[senha]'"


# -- secrets of our own, and of what runs beside us

SECRET = "hunter2-Sesame9"
KEY = "march:" + "Zm9vYmFyYmF6cXV4" * 2 + "Zm9vYmFyYmE="
TOKEN = "t." + "kQ3zB1xV" * 8
API_KEY = "de1375e9" * 9
WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw=="


@pytest.mark.parametrize(
    "text",
    [
        f"completed {TOKEN} too late",
        f"POST /hooks?t={TOKEN}&x=1",
        f"BATUTA_KEYS={KEY}",
        f"export BATUTA_KEYS='{KEY},plain'",
        f"the line {KEY} is no key",
        f"BATUTA_AUDIT_KEY={SECRET}",
        f"the key batuta_live_9b83ba4e43c7_{API_KEY} is wrong",
        f"signed with {WEBHOOK}, which is old",
        f"PGPASSWORD={SECRET} psql",
        f"MYSQLPASSWORD: {SECRET}",
        f"dbpassword={SECRET}",
        f"postgresql://ada:{SECRET}@db/shop",
        f"postgresql://ada:{SECRET}/x@db:5432/shop",
        f"direct_url=postgresql%3A%2F%2Fada%3A{SECRET}%40db%2Fshop",
        f"https://{SECRET}{SECRET}@git.example/x",
        f"redis://:{SECRET}@cache:6379/0",
        f"headers=[('authorization', 'Bearer {SECRET}'), ('x-api-key', '{SECRET}')]",
        f"headers: [(b'x-api-key', b'{SECRET}')]",
        f'[["X-Api-Key", "{SECRET}"], ["accept", "*/*"]]',
        f"<senha><![CDATA[{SECRET}]]></senha>",
        f"<ns:password>\n <![CDATA[{SECRET}]]>\n</ns:password>",
        f"mysql --password={SECRET} shop",
        f"mysql --password {SECRET} shop",
        f"Command '['mysql', '--password', '{SECRET}', 'shop']' returned non-zero exit status 1",
        f'{{"argv":"login --api-key \\"{SECRET}\\" --quiet"}}',
        f"-----BEGIN RSA PRIVATE KEY-----\\nDEK-Info: AES\\n{SECRET}\\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_secrets_that_stand_beside_a_process_are_hidden(text: str) -> None:
    shown = usual.text(text)
    assert SECRET not in shown
    assert TOKEN not in shown
    assert KEY[6:] not in shown
    assert API_KEY not in shown
    assert WEBHOOK[6:] not in shown
    assert usual.text(shown) == shown


def test_the_value_of_a_pair_of_a_list_is_hidden() -> None:
    headers = [["X-Api-Key", SECRET], ["accept", "text/html"], ["Cookie", f"session={SECRET}"]]
    assert usual.value({"headers": headers})["headers"] == [
        ["X-Api-Key", "[api_key]"],
        ["accept", "text/html"],
        ["Cookie", "[cookie]"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "https://user@localhost/x",
        "ratio t.2 of section t.intro",
        "passwords are kept for 3 days",
        "http://localhost:8080/users/ada@shop",
        "see https://docs.example.com/a:b@c",
        "('name', 'ada'), ('password', )",
        "at 10:15 in march:2026",
        "<note><![CDATA[all is well]]></note>",
    ],
)
def test_what_only_looks_a_little_like_a_secret_stays(text: str) -> None:
    assert usual.text(text) == text
