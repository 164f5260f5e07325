"""The public names of batuta."""

import batuta


def test_the_exported_names_are_sorted_and_unique() -> None:
    assert list(batuta.__all__) == sorted(set(batuta.__all__))


def test_every_exported_name_can_be_imported() -> None:
    missing = [name for name in batuta.__all__ if not hasattr(batuta, name)]
    assert not missing


def test_no_exported_name_is_private() -> None:
    assert [name for name in batuta.__all__ if name.startswith("_")] in ([], ["__version__"])
