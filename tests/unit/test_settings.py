"""Settings: defaults, environment, arguments, and names that mean nothing."""

import pytest

from batuta.errors import InvalidInput
from batuta.settings import Settings


def test_arguments_go_before_the_environment_and_the_environment_before_defaults() -> None:
    env = {"BATUTA_MAX_RUNS": "7", "BATUTA_THREADS": "9"}
    settings = Settings.from_env(env, threads=3)
    assert (settings.max_runs, settings.threads, settings.lease) == (7, 3, 10.0)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False)]
)
def test_switches_can_be_set_from_the_environment(text: str, value: bool) -> None:
    assert Settings.from_env({"BATUTA_ALWAYS_REPLAY": text}).always_replay is value


@pytest.mark.parametrize(("name", "text"), [("MAX_RUNS", "many"), ("LEASE", "ten"), ("ALWAYS_REPLAY", "perhaps")])
def test_a_variable_that_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=f"BATUTA_{name}='{text}'"):
        Settings.from_env({f"BATUTA_{name}": text})


def test_a_run_may_not_go_too_far_ahead() -> None:
    assert Settings(undurable_entries=1_000).undurable_entries == 1_000
    with pytest.raises(InvalidInput, match="undurable_entries=1001 must be at most 1000"):
        Settings(undurable_entries=1_001)


def test_strange_variables_are_told_with_the_nearest_name() -> None:
    env = {"BATUTA_MAX_RUMS": "5", "BATUTA_DATABASE_URL": "x", "BATUTA_MAX_RUNS": "1", "PATH": "y"}
    assert Settings.strange_variables(env) == ["BATUTA_MAX_RUMS is not a setting; did you mean 'max_runs'?"]


def test_every_setting_has_a_default_that_works() -> None:
    assert Settings.from_env({}) == Settings()
