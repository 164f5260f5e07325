"""Keys: what is one, what is none, and check digits."""

import pytest

from pixdict.dict.keys import KeyType, has_valid_check_digits, is_key, key_type_of, normalised, normalised_key

LONG_EMAIL = "a" * 65 + "@example.com"  # 77 characters

ACCEPTED = {
    "CPF": """
        11122233300 12345678909 00000000000 99999999999 52998224725 11144477735 01234567890 98765432100 00000000191
        10101010101 31415926535""",
    "CNPJ": """
        11222333000150 11222333000181 00000000000191 12ABC34501DE35 12abc34501de35 99999999999999 33683111000107
        00360305000104 60746948000112 AAAAAAAAAAAA00 60701190000104""",
    "PHONE": """
        +5511987654321 +5561988880000 +12 +999999999999999 +14155552671 +442071838750 +351912345678 +819012345678
        +4915123456789 +5521999999999 +19999999999""",
    "EMAIL": f"""
        mail@mail.com a@b a.b@c.d first.last@example.com.br o'neil@example.com x!#$'*+/=?^_`{{|}}~-@example.com
        1@2.3 user+tag@example.org a@xn--bcher-kva.example {LONG_EMAIL} under_score@example.com ..@example.com""",
    "EVP": """
        123e4567-e89b-12d3-a456-426655440000 a946d533-7f22-42a5-9a9b-e87cd55c0f4d 00000000-0000-0000-0000-000000000000
        ffffffff-ffff-ffff-ffff-ffffffffffff 6ba7b810-9dad-11d1-80b4-00c04fd430c8 f47ac10b-58cc-4372-a567-0e02b2c3d479
        7c9e6679-7425-40de-944b-e07fc1f90ae7 550e8400-e29b-41d4-a716-446655440000 01234567-89ab-cdef-0123-456789abcdef
        3f333df6-90a4-4fda-8dd3-9485d27cee36""",
}
REFUSED = {
    "CPF": [
        "",
        "1112223330",
        "111222333000",
        "111.222.333-00",
        "1112223330a",
        " 11122233300",
        "11122233300\n",
        "+1112223330",
        "١١١٢٢٢٣٣٣٠٠",  # digits of another script
        "11122233300 ",
        "11222333000150",
    ],
    "CNPJ": [
        "",
        "1122233300015",
        "112223330001500",
        "11.222.333/0001-50",
        "11222333000150\n",
        " 1222333000150",
        "12ABC34501DE3-",
        "12ABÇ34501DE35",
        "11222333 00150",
        "11122233300",
        "１１２２２３３３０００１５０",
    ],
    "PHONE": [
        "",
        "+",
        "+1",
        "5511987654321",
        "+05511987654321",
        "+5511987654321 ",
        "+55 11 98765 4321",
        "+55(11)987654321",
        "+1234567890123456",  # 16 digits
        "+55119876x4321",
        "+5511987654321\n",
        "00551198765432",
    ],
    "EMAIL": [
        "",
        "mail",
        "@mail.com",
        "mail@",
        "Mail@mail.com",
        "mail@Mail.com",
        "a b@mail.com",
        "a%b@mail.com",
        "a&b@mail.com",
        "a@b@c.com",
        "a@-b.com",
        "a@b-.com",
        "a@b..com",
        "joão@mail.com",
        "a@mail.com\n",
        "a" + LONG_EMAIL,
        "a@" + "b" * 64,
    ],
    "EVP": [
        "",
        "123e4567-e89b-12d3-a456-42665544000",
        "123e4567-e89b-12d3-a456-4266554400000",
        "123E4567-E89B-12D3-A456-426655440000",
        "123e4567e89b12d3a456426655440000",
        "{123e4567-e89b-12d3-a456-426655440000}",
        "123e4567-e89b-12d3-a456-42665544000g",
        "123e4567-e89b-12d3-a456_426655440000",
        "123e4567-e89b-12d3-a456-426655440000\n",
        " 123e4567-e89b-12d3-a456-426655440000",
        "123e4567-e89b-12d3a-456-426655440000",
    ],
}


@pytest.mark.parametrize("key_type", KeyType)
def test_ten_keys_of_each_type_are_taken_and_ten_are_not(key_type: KeyType) -> None:
    accepted = ACCEPTED[key_type].split()
    assert len(accepted) >= 10
    assert len(REFUSED[key_type]) >= 10
    assert [key for key in accepted if not is_key(key_type, key)] == []
    assert [key for key in REFUSED[key_type] if is_key(key_type, key)] == []


@pytest.mark.parametrize("key_type", KeyType)
def test_a_key_tells_its_own_type(key_type: KeyType) -> None:
    assert {key_type_of(key) for key in ACCEPTED[key_type].split()} == {key_type}


def test_a_text_that_is_no_key_has_no_type() -> None:
    assert key_type_of("hello") is None
    assert not is_key("IBAN", "12345678901")


@pytest.mark.parametrize("number", ["12345678909", "11144477735", "52998224725"])
def test_check_digits_of_a_cpf(number: str) -> None:
    assert has_valid_check_digits("CPF", number)
    wrong = str((int(number[-1]) + 1) % 10)
    assert not has_valid_check_digits("CPF", number[:-1] + wrong)


@pytest.mark.parametrize("number", ["11122233300", "12345678901", "11111111111", "1234567890", ""])
def test_the_official_examples_have_wrong_check_digits(number: str) -> None:
    assert not has_valid_check_digits("CPF", number)


@pytest.mark.parametrize("number", ["12ABC34501DE35", "12abc34501de35", "00000000000191", "11222333000181"])
def test_check_digits_of_a_cnpj_with_digits_and_with_letters(number: str) -> None:
    assert has_valid_check_digits("CNPJ", number)
    wrong = str((int(number[-1]) + 1) % 10)
    assert not has_valid_check_digits("CNPJ", number[:-1] + wrong)


@pytest.mark.parametrize("number", ["11222333000150", "12ABC34501DEAA", "00000000000000", "1122233300018"])
def test_numbers_that_are_no_cnpj(number: str) -> None:
    assert not has_valid_check_digits("CNPJ", number)


def test_other_types_have_no_check_digits() -> None:
    assert has_valid_check_digits("PHONE", "+5511987654321")


def test_a_cnpj_is_stored_in_capital_letters_and_an_email_as_it_is() -> None:
    assert normalised("CNPJ", "12abc34501de35") == normalised_key("12abc34501de35") == "12ABC34501DE35"
    assert normalised_key("mail@mail.com") == "mail@mail.com"
