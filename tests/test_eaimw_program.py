"""`eaimw` itself: its help, and a command that it does not have."""

from __future__ import annotations

import pytest
from commands import command

from eaimw.cli import COMMANDS


def said(*arguments: str) -> tuple[int, str, str]:
    with command(*arguments) as running:
        status = running.wait()
        return status, b"".join(running.lines).decode(), running.errors


def test_every_command_has_its_help() -> None:
    """With -h as with --help."""
    for asked in ([], *([name] for name in COMMANDS)):
        status, text, errors = said(*asked, "-h")
        assert (status, errors) == (0, "")
        assert text.startswith(" ".join(["Usage: eaimw", *asked, "["]))
        assert "-h, --help" in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rely", "No such command 'rely'; did you mean relay?"),
        ("target", "No such command 'target'; did you mean targets?"),
        ("zzz", "No such command 'zzz'"),
    ],
)
def test_a_command_that_is_not_there_is_told_with_the_nearest(name: str, says: str) -> None:
    """Status 2, whatever stands behind it."""
    status, text, errors = said(name, "--listen", "x")
    assert (status, text) == (2, "")
    assert errors.splitlines()[-1] == f"Error: {says}"
    assert "Traceback" not in errors


def test_an_option_that_is_not_there_is_told() -> None:
    """It is not taken for a command."""
    status, _, errors = said("--relay")
    assert status == 2
    assert "No such option" in errors
