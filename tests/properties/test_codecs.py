"""Payloads come back as they were, and only where they belong; whatever else is there instead is found."""

from __future__ import annotations

import base64
import secrets
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import json

from batuta.codecs import Bound, Compression, Encryption, Keys, PayloadCodec
from batuta.errors import InvalidInput, PayloadDamaged, PayloadSealed
from batuta.journal.codec_envelope import MARK, OLDER_MARK, is_coded, join
from batuta.stores.coded.payloads import Payloads

KEYS = f"k1:{base64.b64encode(bytes(range(32))).decode()}"
CHAINS: list[Sequence[PayloadCodec]] = [
    [Encryption(KEYS)],
    [Compression(least=0), Encryption(KEYS)],
    [Compression(least=8)],
]
SEALING = CHAINS[:2]
texts = st.text() | st.text().map(lambda text: MARK + text) | st.text().map(lambda text: text * 50)
parts = st.lists(st.text(max_size=5), max_size=3)


def payloads(codecs: Sequence[PayloadCodec], namespace: str = "shop") -> Payloads:
    return Payloads(codecs, namespace)


@given(text=texts, crc=st.integers(0, 2**32 - 1), scope=st.text(), place=parts, chain=st.sampled_from(CHAINS))
def test_a_payload_is_read_as_it_was_written(
    text: str, crc: int, scope: str, place: list[str], chain: list[PayloadCodec]
) -> None:
    ours = payloads(chain)
    bound = ours.bound(scope, *place)
    assert ours.decode(ours.encode(text, bound), bound) == text
    assert ours.decode_body(*ours.encode_body(text, crc, bound), bound) == (text, crc)


@given(text=st.text(min_size=4), chain=st.sampled_from(SEALING))
def test_encrypted_text_does_not_show(text: str, chain: list[PayloadCodec]) -> None:
    ours = payloads(chain)
    written = [ours.encode(text, ours.bound("run", "entry")) for _ in range(2)]
    assert written[0] != written[1]  # equal values do not look equal
    assert all(is_coded(one) and one.isascii() for one in written)


@given(data=st.data(), text=st.text(), chain=st.sampled_from(SEALING))
def test_any_byte_that_was_changed_is_found(data: st.DataObject, text: str, chain: list[PayloadCodec]) -> None:
    ours = payloads(chain)
    bound = ours.bound("run", "entry", 0)
    written = ours.encode(text, bound)
    place = data.draw(st.integers(0, len(written) - 1))
    other = data.draw(st.characters(codec="utf-8"))
    assume(other != written[place])
    with pytest.raises(PayloadSealed):
        ours.decode(written[:place] + other + written[place + 1 :], bound)


@given(data=st.data(), text=st.text(), chain=st.sampled_from(SEALING))
def test_a_truncated_payload_is_detected(data: st.DataObject, text: str, chain: list[PayloadCodec]) -> None:
    ours = payloads(chain)
    bound = ours.bound("run", "entry", 0)
    written = ours.encode(text, bound)
    with pytest.raises(PayloadSealed):
        ours.decode(written[: data.draw(st.integers(0, len(written) - 1))], bound)


@given(mine=st.tuples(st.text(), parts), theirs=st.tuples(st.text(), parts), chain=st.sampled_from(SEALING))
def test_a_payload_that_was_moved_is_found(
    mine: tuple[str, list[str]], theirs: tuple[str, list[str]], chain: list[PayloadCodec]
) -> None:
    assume(mine != theirs)
    ours = payloads(chain)
    written = ours.encode("secret", ours.bound(mine[0], *mine[1]))
    with pytest.raises(PayloadDamaged):
        ours.decode(written, ours.bound(theirs[0], *theirs[1]))


def test_a_place_is_the_same_however_many_scopes_came_before() -> None:
    """Also when scopes are made anew where others were in memory."""
    ours = payloads(CHAINS[0])
    for number in range(3_000):
        scope = f"run {number}"
        assert ours.bound(scope, "entry", number) == payloads(CHAINS[0]).bound(scope, "entry", number)
    assert ours.bound("run 1", "entry", namespace="other") == payloads(CHAINS[0], "other").bound("run 1", "entry")


def test_a_payload_of_another_namespace_is_found() -> None:
    here, there = payloads(CHAINS[0]), payloads(CHAINS[0], "other")
    with pytest.raises(PayloadDamaged):
        there.decode(here.encode("secret", here.bound("run", "memo")), there.bound("run", "memo"))


@given(text=st.text().filter(lambda text: not is_coded(text)))
def test_plain_text_is_refused_unless_plain_stands_among_the_keys(text: str) -> None:
    strict, lenient = payloads([Encryption(KEYS)]), payloads([Encryption(f"{KEYS}, plain")])
    with pytest.raises(PayloadDamaged):
        strict.decode(text, strict.bound("run", "entry"))
    assert lenient.decode(text, lenient.bound("run", "entry")) == text


def test_compressed_text_does_not_pass_as_encrypted() -> None:
    bound = payloads(CHAINS[0]).bound("run", "entry")
    packed = payloads([Compression(least=0)]).encode("x" * 100, bound)
    with pytest.raises(PayloadDamaged):
        payloads([Compression(), Encryption(KEYS)]).decode(packed, bound)


def test_the_first_key_writes_and_all_read() -> None:
    old, new = Keys.new("old"), Keys.new("new")
    before, after, only_new = (payloads([Encryption(keys)]) for keys in (old, f"{new},{old}", new))
    bound = before.bound("run", "entry")
    first = before.encode("secret", bound)
    assert after.decode(first, bound) == "secret"
    assert not after.is_current(first)
    second = after.encode("secret", bound)
    assert only_new.decode(second, bound) == "secret"
    assert after.is_current(second)
    with pytest.raises(PayloadSealed, match="encrypted with key 'old', and this process has new"):
        only_new.decode(first, bound)


def test_another_key_of_the_same_id_is_told_from_a_payload_that_was_changed() -> None:
    one, other = payloads([Encryption(Keys.new("k1"))]), payloads([Encryption(Keys.new("k1"))])
    bound = one.bound("run", "entry")
    with pytest.raises(PayloadSealed, match="another key 'k1' than ours") as found:
        other.decode(one.encode("secret", bound), bound)
    assert type(found.value) is PayloadSealed
    assert one.mark != other.mark


@given(secret=st.binary(min_size=16, max_size=40), id=st.text(max_size=10), junk=st.sampled_from(["", ":", "=", ",x"]))
def test_no_error_about_keys_shows_one(secret: bytes, id: str, junk: str) -> None:
    encoded = base64.b64encode(secret).decode()
    for text in (f"{id}:{encoded}{junk}", f"{encoded}{junk}", f"{id} {encoded}"):
        try:
            shown = repr(Keys.parse(text))
        except InvalidInput as error:
            shown = f"{error!r} {error.__cause__!r}"
        assert encoded.rstrip("=") not in shown


def test_keys_are_not_shown_nor_pickled() -> None:
    text = Keys.new("k1")
    keys = Keys.parse(text)
    assert repr(Encryption(keys)) == "Encryption(Keys(k1))"
    assert "key k1" in repr(keys.first)
    with pytest.raises(TypeError, match="not pickled"):
        keys.first.__reduce__()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key was given"),
        ("plain", "no key was given"),
        ("k1", "key 1 is not of the form id:base64"),
        ("k1:!!!", "key 'k1' is not base64"),
        ("k1:AAAA", "key 'k1' must be 32 bytes"),
        (f"{KEYS},{KEYS}", "two keys have the same id"),
        (f"two words:{KEYS[3:]}", "not of the form"),
        (f"plain:{KEYS[3:]}", "must be 1 to 20 letters"),
    ],
)
def test_keys_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Keys.parse(text)


def test_keys_of_a_file_may_have_comments() -> None:
    other = Keys.new("k2")
    keys = Keys.parse(f"# the newest first\n{other}\n\n{KEYS}  # before\nplain\nold\n")
    assert list(keys.all) == ["k2", "k1"]
    assert keys.first.id == "k2"
    assert (keys.plain, keys.old) == (True, True)
    assert repr(keys) == "Keys(k2, k1, plain, old)"


class Reversed(PayloadCodec):
    """One of a user's own."""

    name = "reversed"

    def encode(self, data: bytes, bound: Bound) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        return data[::-1]


class Broken(Reversed):
    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        raise KeyError(secrets.token_hex())


def test_a_codec_of_ones_own_can_stand_anywhere() -> None:
    ours = payloads([Reversed(), Encryption(KEYS)])
    bound = ours.bound("run", "entry")
    assert ours.decode(ours.encode("abc", bound), bound) == "abc"
    with pytest.raises(PayloadSealed, match="went through codec 'reversed', and this process has zlib"):
        payloads([Compression()]).decode(payloads([Reversed()]).encode("abc", bound), bound)


def test_a_codec_that_fails_has_its_name_in_the_error() -> None:
    bound = payloads([Reversed()]).bound("run", "entry")
    written = payloads([Reversed()]).encode("abc", bound)
    with pytest.raises(PayloadDamaged, match="codec 'reversed' cannot decode it: KeyError"):
        payloads([Broken()]).decode(written, bound)


@pytest.mark.parametrize("codecs", [[Reversed(), Reversed()], ["aes"], [Encryption]])
def test_codecs_that_cannot_be_are_refused(codecs: list[PayloadCodec]) -> None:
    with pytest.raises(InvalidInput):
        payloads(codecs)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where nothing says who wrote it."""
    bomb = join(["zlib"], zlib.compress(b"x" * 50_000_000, 9))
    bound = payloads([Compression()]).bound("run", "entry")
    tracemalloc.start()
    try:
        with pytest.raises(PayloadDamaged, match=r"decompresses to more than 8,388,608 bytes: .* BATUTA_MAX_PAYLOAD"):
            payloads([Compression()]).decode(bomb, bound)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    monkeypatch.setenv("BATUTA_MAX_PAYLOAD", "50000000")
    assert len(payloads([Compression()]).decode(bomb, bound)) == 50_000_000


def test_text_that_is_too_large_to_unpack_is_not_packed() -> None:
    ours = payloads([Compression(least=0)])
    bound = ours.bound("run", "entry")
    for size in (8_388_608, 8_388_609):
        text = "x" * size
        written = ours.encode(text, bound)
        assert is_coded(written) is (size == 8_388_608)
        assert ours.decode(written, bound) == text


def test_nothing_is_unpacked_before_it_is_known_who_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = payloads([Compression(least=0), Encryption(KEYS)])
    bound = ours.bound("run", "entry")
    tag = ours.encode("x", bound).split(":")[1].split("+")[-1]
    monkeypatch.setattr(Compression, "decode", lambda *_: pytest.fail("it was unpacked"))
    for tags in ([tag, "zlib"], ["zlib", tag, "zlib"], ["zlib"] * 5_000 + [tag], [tag] + ["zlib"] * 5_000):
        with pytest.raises(PayloadDamaged):
            ours.decode(join(tags, zlib.compress(b"x" * 10_000)), bound)


def test_a_codec_that_unpacks_must_come_before_one_that_every_payload_goes_through() -> None:
    with pytest.raises(InvalidInput, match="codec 'zlib' comes after 'aes': put it before"):
        payloads([Encryption(KEYS), Reversed(), Compression()])


# -- what earlier versions wrote


def written_before(text: str, scope: object, *place: object) -> str:
    """As versions before bound it."""
    codec = Encryption(KEYS)
    bound = Bound(json.encode(("shop", scope)), json.encode(("shop", scope, *place)) + b"\0\0")
    return OLDER_MARK + join([f"aes.{codec.label}"], codec.encode(text.encode(), bound)).removeprefix(MARK)


def test_what_an_earlier_version_wrote_is_read_when_old_stands_among_the_keys() -> None:
    strict, lenient = payloads([Encryption(KEYS)]), payloads([Encryption(f"{KEYS}, old")])
    text, place = written_before("secret", "run", "memo"), ("run", "memo")
    with pytest.raises(PayloadSealed, match="let the word 'old' stand among the keys, and run `batuta keys rotate`"):
        strict.decode(text, strict.bound(*place), place)
    assert lenient.decode(text, lenient.bound(*place), ("other", "memo"), place) == "secret"
    with pytest.raises(PayloadDamaged):
        lenient.decode(text, lenient.bound(*place), ("other", "memo"))
    assert not strict.is_current(text)
    assert strict.is_current(lenient.encode("secret", lenient.bound(*place)))
    assert strict.mark != lenient.mark


def test_what_is_bound_as_before_does_not_pass_as_bound_as_now() -> None:
    ours, place = payloads([Encryption(f"{KEYS}, old")]), ("run", "memo")
    old, new = written_before("secret", *place), ours.encode("secret", ours.bound(*place))
    for text in (old.replace(OLDER_MARK, MARK), new.replace(MARK, OLDER_MARK)):
        with pytest.raises(PayloadDamaged):
            ours.decode(text, ours.bound(*place), place)


def test_what_was_only_packed_before_is_read_as_ever() -> None:
    ours = payloads([Compression(least=0)])
    bound = ours.bound("run", "memo")
    assert ours.decode(ours.encode("x" * 99, bound).replace(MARK, OLDER_MARK), bound, ("run", "memo")) == "x" * 99


# -- keyed hashes


def test_a_keyed_hash_is_the_same_with_the_same_key_and_with_no_other() -> None:
    one, other = payloads([Compression(), Encryption(KEYS)]), payloads([Encryption(Keys.new("k1"))])
    assert one.keyed("0011") == payloads([Encryption(KEYS)]).keyed("0011") != "0011"
    assert one.keyed("0011") != one.keyed("0012")
    assert one.keyed("0011") != other.keyed("0011")
    assert payloads([Compression()]).keyed("0011") == "0011"
