"""Keys of the directory: types, patterns, check digits and the spelling that is stored."""

from __future__ import annotations

import re
from enum import StrEnum

MAX_KEY_LENGTH = 77


class KeyType(StrEnum):
    """What a key is. The directory may add types: fields of answers are plain text, compare them with these."""

    CPF = "CPF"
    CNPJ = "CNPJ"
    PHONE = "PHONE"
    EMAIL = "EMAIL"
    EVP = "EVP"


_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

PATTERNS: dict[KeyType, re.Pattern[str]] = {
    KeyType.CPF: re.compile(r"[0-9]{11}"),
    KeyType.CNPJ: re.compile(r"[a-zA-Z0-9]{14}"),
    KeyType.PHONE: re.compile(r"\+[1-9][0-9]{1,14}"),
    KeyType.EMAIL: re.compile(rf"[a-z0-9.!#$'*+/=?^_`{{|}}~-]+@{_LABEL}(?:\.{_LABEL})*"),
    KeyType.EVP: re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
}
"""Each matches a whole key (`fullmatch`)."""


def is_key(key_type: str, key: str) -> bool:
    """Whether `key` is spelled as the directory takes keys of that type. Says nothing about check digits."""
    pattern = PATTERNS.get(KeyType(key_type)) if key_type in KeyType.__members__ else None
    return pattern is not None and len(key) <= MAX_KEY_LENGTH and pattern.fullmatch(key) is not None


def key_type_of(key: str) -> KeyType | None:
    """The type that a key of a path or a list has; None when it is no key of any known type."""
    return next((key_type for key_type in KeyType if is_key(key_type, key)), None)


def normalised(key_type: str, key: str) -> str:
    """The spelling that keys are compared in: a CNPJ in capital letters, all others as they are."""
    return key.upper() if key_type == KeyType.CNPJ else key


def normalised_key(key: str) -> str:
    """`normalised` for a key that comes without its type."""
    return normalised(key_type_of(key) or "", key)


def has_valid_check_digits(key_type: str, key: str) -> bool:
    """Whether the check digits of a CPF or CNPJ fit. True for every other type, which has none.

    The directory itself documents no such check: it is for what people type in.
    """
    match key_type:
        case KeyType.CPF:
            return is_cpf(key)
        case KeyType.CNPJ:
            return is_cnpj(key)
    return True


def is_cpf(number: str) -> bool:
    """11 digits whose last two are their check digits, and which are not all equal."""
    if not PATTERNS[KeyType.CPF].fullmatch(number) or len(set(number)) == 1:
        return False
    digits = [int(digit) for digit in number]
    return all(
        sum(digit * weight for digit, weight in zip(digits, range(size + 1, 1, -1), strict=False)) * 10 % 11 % 10
        == digits[size]
        for size in (9, 10)
    )


_CNPJ = re.compile(r"[0-9A-Z]{12}[0-9]{2}")
_CNPJ_WEIGHTS = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)


def is_cnpj(number: str) -> bool:
    """12 digits or letters and two check digits. Small letters count as capital ones."""
    number = number.upper()
    if not _CNPJ.fullmatch(number) or len(set(number)) == 1:
        return False
    values = [ord(character) - 48 for character in number]
    for size in (12, 13):
        weights = _CNPJ_WEIGHTS[13 - size :]
        rest = sum(value * weight for value, weight in zip(values[:size], weights, strict=True)) % 11
        if values[size] != (0 if rest < 2 else 11 - rest):
            return False
    return True
