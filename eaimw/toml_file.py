"""A file in TOML that is checked as a whole: each fault a sentence with its place, what was found, what is allowed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eaimw.errors import EaimwError, Unusable, nearest, shown


class BadFile(EaimwError):
    """A file that cannot be used. faults: all of them, each a sentence that begins with its place."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        super().__init__("\n".join(f"{path}: {fault}" for fault in faults))
        self.faults = faults


def parsed(path: Path, what: str) -> dict[str, Any]:
    """The file's tables. what: it should be. Raises Unusable if it cannot be read, BadFile if it is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise Unusable(f"{path} cannot be read: {problem.strerror}; name {what}") from None
    except (ValueError, RecursionError) as problem:  # an integer of 5,000 digits is no TOMLDecodeError
        raise BadFile(path, [f"it is not TOML: {problem}"]) from None


def spelled(value: object) -> str:
    """A value as TOML spells it; for numbers, truth, strings and lists that a hub.toml has that is as JSON does."""
    return json.dumps(value, ensure_ascii=False)


class Reading:
    """One reading of one file; collects its faults."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self._path = path
        self._folder = path.resolve().parent
        self._data = data
        self._faults: list[str] = []

    def _table(self, data: dict[str, Any], key: str, place: str = "") -> dict[str, Any]:
        table = data.get(key, {})
        if not isinstance(table, dict):
            self._faults.append(f"{place or key}: it is {shown(table)}; it must be a table, [{place or key}]")
            return {}
        return table

    def _known(self, table: dict[str, Any], known: Iterable[str], place: str, also: tuple[str, ...] = ()) -> None:
        names = [*known, *also]
        for key in table:
            if key not in names:
                where = f"{place}.{key}" if place else key
                self._faults.append(f"{where}: unknown; known are {', '.join(names)}{nearest(key, names)}")
