"""`eaimw sim`: the same hub in virtual time. One file per command here, as in the folder above."""

from __future__ import annotations

from eaimw.cli.lazy import Lazy

COMMANDS: tuple[str, ...] = ("run", "cascade", "backlog", "amplify", "synchrony", "recover", "size", "replay")

sim = Lazy(
    "sim",
    package=__name__,
    names=COMMANDS,
    help="See what a setting does before an outage does: the real hub in virtual time.",
)
