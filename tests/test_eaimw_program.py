"""`eaimw` itself: its help, and a command that it does not have."""

from __future__ import annotations

import pytest
from commands import eaimw

from eaimw.cli import COMMANDS


def test_every_command_has_its_help() -> None:
    """With -h as with --help."""
    for asked in ([], *([name] for name in COMMANDS)):
        done = eaimw(*asked, "-h")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(" ".join(["Usage: eaimw", *asked, "["]))
        assert "-h, --help" in done.stdout


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
    done = eaimw(name, "--listen", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"Error: {says}"
    assert "Traceback" not in done.stderr


def test_an_option_that_is_not_there_is_told() -> None:
    """It is not taken for a command."""
    done = eaimw("--relay")
    assert done.returncode == 2
    assert "No such option" in done.stderr
