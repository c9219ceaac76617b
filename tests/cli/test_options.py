"""One grammar for all verbs: an option has the same type, placeholder and meaning wherever it stands."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from traincast.cli.main import VERBS, app


def commands(group: click.Group = app, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every verb that can be called, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, words)
        else:
            yield words, command


COMMANDS = dict(commands())


def shown_options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def first_part(text: str) -> str:
    """The first sentence of a help text, or what stands before its colon."""
    return re.split(r"(?<=[.:;]) |\.$", text)[0]


def test_every_verb_is_walked() -> None:
    assert {words.split()[0] for words in COMMANDS} == set(VERBS)
    assert {"fit operators", "profile collectives", "validate dp-steps"} <= set(COMMANDS)


def test_an_option_has_one_type_one_placeholder_and_one_meaning() -> None:
    seen: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for words, command in COMMANDS.items():
        for option in shown_options(command):
            settings = (
                tuple(option.opts),
                repr(option.type),
                option.metavar,
                option.is_flag,
                option.multiple,
                first_part(option.help or ""),
            )
            seen[option.opts[-1]][settings].append(words)
    assert len(seen) > 60
    seen.pop("--nodes")  # the nodes of one shared cluster, and the numbers of nodes that a search compares
    seen.pop("--from")  # models that operators are taken from; bundles that cells are copied from, or that are adapted
    seen.pop("--network")  # the rate of real links, and how many times as fast recorded ones become
    seen.pop("--device")  # where operators are measured, and the device that a log does not name
    seen.pop("--explain")  # of one row where its time went, of a forecast all that is doubtful
    assert {name: dict(found) for name, found in seen.items() if len(found) > 1} == {}


def test_options_that_all_verbs_share_are_on_all_that_need_them() -> None:
    have = {words: {option.opts[-1] for option in shown_options(command)} for words, command in COMMANDS.items()}
    assert all("--json" in names for names in have.values())
    assert {words for words, names in have.items() if "--engine" in names} == {
        "search",
        "schedule",
        "resources simulate",
    }
    assert {words for words, names in have.items() if "--workers" in names} == {
        "search",
        "schedule",
        "fit operators",
        "resources simulate",
    }
    assert all("--address" in names for names in have.values() if "--engine" in names)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_has_a_help_text_and_a_placeholder(words: str) -> None:
    for option in shown_options(COMMANDS[words]):
        text = option.help or ""
        assert text and text[0] == text[0].upper() and text.endswith("."), option.opts
        assert option.is_flag or option.metavar, option.opts
        if words != "schedule":  # which speaks as job traces do
            assert "GPU" not in text, f"{option.opts}: one accelerator is called a device"


@pytest.mark.parametrize("words", COMMANDS)
def test_every_verb_says_what_it_does_and_shows_an_example_that_parses(words: str) -> None:
    command = COMMANDS[words]
    assert command.help
    epilog = command.epilog or ""
    (line,) = re.findall(r"^  traincast (.+)$", epilog, re.M)
    call = shlex.split(line)
    depth = len(words.split())
    assert " ".join(call[:depth]) == words
    command.make_context(words, call[depth:])


def test_short_descriptions_are_the_same_in_the_list_and_in_the_verb() -> None:
    for name, (_, text) in VERBS.items():
        command = app.get_command(click.Context(app), name)
        assert command is not None
        assert command.short_help == text
