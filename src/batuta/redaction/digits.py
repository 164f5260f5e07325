"""Numbers that prove themselves: check digits of CPF, CNPJ and cards."""

from __future__ import annotations

from collections.abc import Sequence

_CNPJ_WEIGHTS = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
_CPF_WEIGHTS = (11, 10, 9, 8, 7, 6, 5, 4, 3, 2)
_MASTERCARD = range(2221, 2721)


def is_cpf(text: str) -> bool:
    """Eleven digits, the last two of which check the others."""
    return _is_checked(text, _CPF_WEIGHTS)


def is_cnpj(text: str) -> bool:
    """Twelve digits or capital letters (from 2026 on), and two digits that check them."""
    return _is_checked(text, _CNPJ_WEIGHTS)


def _is_checked(text: str, weights: Sequence[int]) -> bool:
    """Modulo 11, twice: the first check digit counts for the second."""
    if len(set(text)) == 1:  # 000..., 111...: they fit, but belong to no person
        return False
    values = [ord(character) - ord("0") for character in text]
    return all(values[-last] == _check(values[:-last], weights[last - 1 :]) for last in (2, 1))


def _check(values: Sequence[int], weights: Sequence[int]) -> int:
    rest = sum(value * weight for value, weight in zip(values, weights, strict=True)) % 11
    return 0 if rest < 2 else 11 - rest


def is_card(text: str) -> bool:
    """Digits that fit Luhn's formula, of a length and with a beginning that cards have."""
    return _is_issued(text) and _luhn(text) == 0


def _is_issued(text: str) -> bool:
    size = len(text)
    match text[0]:
        case "4":
            return size in (13, 16, 19)
        case "5":
            return size == 16
        case "2":
            return size == 16 and int(text[:4]) in _MASTERCARD
        case "6":
            return 16 <= size <= 19
        case "3" if text[1] in "47":
            return size == 15
        case "3" if text[1] in "0689":
            return size in (14, 16, 19)
        case "3" if text[1] == "5":
            return 16 <= size <= 19
    return False


def _luhn(text: str) -> int:
    doubled = sum(sum(divmod(int(digit) * 2, 10)) for digit in text[-2::-2])
    return (doubled + sum(int(digit) for digit in text[-1::-2])) % 10
