"""What another reading of a hub.toml changes, as lines for people: what is in force at once, what needs a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from eaimw.config import OpSettings
from eaimw.hub_file import KEYS, HubFile, value_of
from eaimw.toml_file import spelled

# What the hub opens when it starts, by its name in a HubFile.
_AT_START = {
    "listen": "hub.listen",
    "breaker_log": "hub.breaker_log",
    "access_log": "hub.access_log",
    "tls": "hub.tls_certificate, tls_key or tls_client_ca",
    "admin_listen": "admin.listen",
}


class Reloaded(NamedTuple):
    """What came of reading a hub.toml again. faults: why nothing has changed; else what has, and what will only after
    a restart; each line begins with its place in the file.
    """

    faults: list[str]
    changed: list[str]
    needs_restart: list[str]


def differences(before: HubFile, after: HubFile) -> Reloaded:
    """From one reading to the next, in the order of the file."""
    old, new = before.settings, after.settings
    changed = _between("targets", _settings(before), _settings(after))
    changed += _between("routes", *({op: {"": name} for op, name in each.routes.items()} for each in (old, new)))
    changed += _between("ops", _of_ops(old.ops), _of_ops(new.ops))
    needs_restart = [
        f"{place}: {_told(getattr(before, name))} -> {_told(getattr(after, name))}"
        for name, place in _AT_START.items()
        if getattr(before, name) != getattr(after, name)
    ]
    if before.admin_token != after.admin_token:
        needs_restart.append("admin.token: another one")
    return Reloaded([], changed, needs_restart)


def _settings(file: HubFile) -> dict[str, dict[str, Any]]:
    return {name: {key: value_of(target, key) for key in KEYS} for name, target in file.settings.targets.items()}


def _of_ops(ops: Mapping[str, OpSettings]) -> dict[str, dict[str, Any]]:
    return {op: {each.name: getattr(known, each.name) for each in fields(known)} for op, known in ops.items()}


def _between(
    section: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    lines = [f"{section}.{name}: removed" for name in before if name not in after]
    for name, values in after.items():
        place = f"{section}.{name}"
        if name not in before:
            lines.append(f"{place}: new")
            continue
        lines += [
            f"{place}{'.' + key if key else ''}: {_told(before[name][key])} -> {_told(value)}"
            for key, value in values.items()
            if value != before[name][key]
        ]
    return lines


def _told(value: Any) -> str:
    """As TOML spells it; what is no plain value (an address, a path, a record) by its own words."""
    if value is None:
        return "none"
    return spelled(value) if type(value) in (bool, int, float, str, tuple) else str(value)
