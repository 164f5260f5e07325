"""The compose file of deploy/: what it runs exists, and its settings are those of the command."""

import json
import re
import shlex

import click
import pytest

from batuta.cli import root as batuta
from pixdict.cli import root
from tests.architecture.source import ROOT

FOLDER = ROOT / "deploy" / "compose"
TEXT = (FOLDER / "pixdict.yml").read_text()
SERVICES = dict(
    re.findall(r"^  (\w+):\n((?:    .*\n)+)", TEXT.partition("\nservices:\n")[2].partition("\nvolumes:")[0], re.M)
)
COMMANDS = {
    name: json.loads(found[0]) for name, body in SERVICES.items() if (found := re.findall(r"command: (\[.*\])", body))
}
PARTS = ["core", "connect", "bridge", "directory"]


def test_all_parts_are_there_with_what_they_need():
    assert set(SERVICES) == {*PARTS, "batuta", "postgres", "valkey", "pulsar"}
    for name in PARTS:
        assert COMMANDS[name][:3] == ["serve", "--role", name]


@pytest.mark.parametrize("name", PARTS)
def test_the_command_of_a_part_has_options_that_exist(name):
    serve = root.commands["serve"]
    with serve.make_context("serve", COMMANDS[name][1:]) as context:
        assert context.params["role"] == name
        host = (context.params["listen"] or "").rpartition(":")[0]
        assert name == "connect" or host == "0.0.0.0"


def test_the_settings_in_the_environment_are_options_of_the_command():
    options = {one.name for one in root.commands["serve"].params if isinstance(one, click.Option)}
    named = re.findall(r"PIXDICT_SERVE_(\w+):", TEXT)
    assert named
    assert {name.lower() for name in named} <= options


def test_parts_find_each_other_by_the_names_of_services():
    hosts = {
        *re.findall(r"@(\w+)[/:]", TEXT),
        *re.findall(r"pulsar://(\w+):", TEXT),
        *re.findall(r"\"http://(\w+):", TEXT),
        *(one.partition(":")[0] for one in COMMANDS["connect"] if one.startswith("bridge:")),
    }
    assert hosts == {"postgres", "valkey", "pulsar", "directory", "bridge"}
    assert set(re.findall(r"^    (\w+): \{condition: ", TEXT, re.M)) <= set(SERVICES)
    ports = {name: re.findall(r"(?<!bridge):(\d{4,5})", " ".join(COMMANDS[name])) for name in PARTS}
    assert ports["bridge"][0] == "50051"
    assert all("bridge:50051" in COMMANDS[name] for name in ("connect", "core"))
    assert f"http://directory:{ports['directory'][0]}" in COMMANDS["bridge"]
    assert f"127.0.0.1:{ports['core'][0]}:{ports['core'][0]}" in SERVICES["core"]


def test_nothing_that_is_secret_stands_in_the_file_and_every_secret_must_be_set():
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "BATUTA_SERVER_SECRET"}
    assert not re.findall(r"\$\{\w+\}", TEXT), "without a value it would be empty"
    assert all("127.0.0.1:" in one for one in re.findall(r"ports: (.*)", TEXT))


def test_the_commands_that_its_comment_names_exist():
    [line] = [one for one in TEXT.splitlines() if " run --rm batuta api-keys create" in one]
    words = shlex.split(line.partition("run --rm batuta ")[2])
    group = batuta.get_command(click.Context(batuta), words[0])
    assert isinstance(group, click.Group)
    create = group.get_command(click.Context(group), words[1])
    assert create is not None
    create.make_context(words[1], words[2:]).close()
    [line] = [one for one in TEXT.splitlines() if " -f deploy/compose/pixdict.yml up" in one]
    assert (ROOT / line.split(" -f ")[1].split()[0]).is_file()


def test_the_image_copies_what_exists():
    lines = [one.partition(" ") for one in (FOLDER / "Containerfile").read_text().splitlines() if one[:1] not in "#"]
    copied = [name for word, _, rest in lines if word == "COPY" for name in rest.split()[:-1]]
    assert {"pyproject.toml", "src"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    [entry] = [json.loads(rest) for word, _, rest in lines if word == "ENTRYPOINT"]
    assert entry == ["pixdict"]
    assert "dockerfile: deploy/compose/Containerfile" in TEXT
