"""Writes the README's parts that come from the code, between their marks; `--check` only compares.

A part stands between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

import click

from eaimw import codes
from eaimw.cli import main as cli
from eaimw.cli.sim.printing import tables
from eaimw.config import OpSettings, TargetSettings
from eaimw.errors import SettingsError
from eaimw.hub_file import KEYS, OP_KEYS
from eaimw.kernel.breaker import TABLE
from eaimw.policy import BreakerSettings, RetrySettings
from eaimw.sim.expectations import FIGURES
from eaimw.sim.findings import Findings
from eaimw.sim.studies import cascade, recover, synchrony
from eaimw.stack import PER_ATTEMPT, PER_CALL
from eaimw.toml_file import spelled

README = Path(__file__).resolve().parent.parent / "README.md"
MARKED = re.compile(r"(<!-- (?P<name>[a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def diagram() -> str:
    """The breaker's states, as Mermaid draws them."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> CLOSED"]
    lines += [f"    {state} --> {after}: {event}" for (state, event), after in TABLE.items() if state is not after]
    return "\n".join([*lines, "```"])


def table() -> str:
    """Every row of the breaker's table."""
    rows = [f"| {state} | {event} | {after} |" for (state, event), after in TABLE.items()]
    return "\n".join(["| state | event | next state |", "|---|---|---|", *rows])


def reply_codes() -> str:
    """The codes that the hub itself gives or knows."""
    rules = {
        codes.OK: codes.RULES[codes.OK],
        "B2xx": codes.of_target("B299"),
        "any other": codes.of_target("X000"),
        **{code: rule for code, rule in codes.RULES.items() if code != codes.OK},
    }
    unsent = {code: f"{codes.RULES[code].outcome}; not_sent if no byte was handed over" for code in codes.MAY_BE_UNSENT}
    # A code that has no name in `codes` is said by no part of the hub.
    said = {value for name, value in vars(codes).items() if name.isupper() and isinstance(value, str)}
    marks = {code: " (*not yet*)" for code in codes.RULES if code not in said}
    rows = [
        f"| `{code}` | {rule.meaning}{marks.get(code, '')} | {unsent.get(code, rule.outcome)} | {rule.sample} "
        f"| {rule.http} |"
        for code, rule in rules.items()
    ]
    return "\n".join(["| code | means | outcome | breaker sample | HTTP |", "|---|---|---|---|---|", *rows])


def layers() -> str:
    """The order of the stack, with its reasons."""
    rows = [f"| {layer.make.__name__} | {layer.when} | {layer.why} |" for layer in (*PER_CALL, *PER_ATTEMPT)]
    return "\n".join(["| layer, outermost first | there with | why here |", "|---|---|---|", *rows])


def help_of(name: str) -> str:
    """What `eaimw NAME --help` prints; name: `relay`, or with its group before it, `sim cascade`."""
    command: click.Command | None = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    context = click.Context(
        command, info_name=f"eaimw {name}", max_content_width=100, terminal_width=100, **cli.context_settings
    )
    return f"```text\n{command.get_help(context)}\n```"


def commands(group: click.Group, before: str = "") -> Iterator[str]:
    """The names of all commands, those of the groups too, so that none is forgotten."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def figures() -> str:
    """What a scenario may expect."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in FIGURES.items()]
    return "\n".join(["| figure | |", "|---|---|", *rows, "| a code, such as `E904` | replies with it |"])


def study(find: Callable[[int], Findings]) -> str:
    """The tables of a study of `eaimw sim`."""
    return "\n".join(["```text", *tables(find(1)), "```"])


def meanings(record: type) -> dict[str, str]:
    """What a record's docstring says of each field: `name: text` or `one, other: text`, after a line or a sentence."""
    names = "|".join(each.name for each in fields(record))
    text = " ".join((record.__doc__ or "").split())
    _, *parts = re.split(rf"(?<=\. )((?:{names})(?:, (?:{names}))*): ", text)
    found = {}
    for entry, meaning in zip(parts[::2], parts[1::2], strict=True):
        first, *others = entry.split(", ")
        found[first] = meaning.strip().removesuffix(".")
        found |= dict.fromkeys(others, f"with `{first}`, above")
    return found


def settings(record: type, keys: Iterable[str], before: str = "") -> str:
    """A table of a record's settings. keys: as they are written below `before`."""
    given = {"url": "http://core"} if record is TargetSettings else {}
    built_in, meaning = record(**given), meanings(record)
    rows = []
    for key in keys:
        name = key.rpartition(".")[2]
        default = "it must be there" if name in given else f"`{spelled(getattr(built_in, name))}`"
        default = "none" if default == "`null`" else default
        rows.append(f"| `{before}{key}` | {allowed(record, given, name)} | {default} | {meaning[name]} |")
    return "\n".join(["| setting | may be | built in | what it does |", "|---|---|---|---|", *rows])


def allowed(record: type, given: dict[str, str], name: str) -> str:
    """In the words that a fault is told with."""
    try:
        record(**{**given, name: object()})
    except SettingsError as problem:
        return problem.allowed
    raise AssertionError(f"{name} is not checked")


PARTS: dict[str, Callable[[], str]] = {
    "diagram": diagram,
    "table": table,
    "codes": reply_codes,
    "layers": layers,
    "figures": figures,
    "settings target": partial(settings, TargetSettings, [key for key in KEYS if "." not in key]),
    "settings breaker": partial(settings, BreakerSettings, [key for key in KEYS if key.startswith("breaker.")]),
    "settings retry": partial(settings, RetrySettings, [key for key in KEYS if key.startswith("retry.")]),
    "settings op": partial(settings, OpSettings, OP_KEYS, "[ops.OP] "),
    "study cascade": lambda: study(cascade.study),
    "study synchrony": lambda: study(synchrony.study),
    "study recover": lambda: study(recover.study),
    **{f"help {name}": partial(help_of, name) for name in commands(cli)},
}


def main() -> None:
    text = README.read_text(encoding="utf-8")
    missing = set(PARTS) - {match["name"] for match in MARKED.finditer(text)}
    if missing:
        raise SystemExit(f"README.md has no place for: {', '.join(sorted(missing))}")
    made = MARKED.sub(lambda match: f"{match[1]}{PARTS[match['name']]()}\n{match[3]}", text)
    if "--check" in sys.argv:
        if made.split() != text.split():
            raise SystemExit("README.md is older than the code; run .venv/bin/python scripts/readme.py")
    else:
        README.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
