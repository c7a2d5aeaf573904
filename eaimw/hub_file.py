"""hub.toml: read, checked as a whole, and turned into the frozen records of `config`.

    [hub]                     listen, breaker_log, access_log, tls_certificate, tls_key, tls_client_ca
    [admin]                   listen, token
    [defaults]                what holds for every target that does not say otherwise
    [targets.NAME]            url, timeout, max_inflight, and more: `config.TargetSettings`
    [targets.NAME.breaker]    `policy.BreakerSettings`
    [targets.NAME.retry]      `policy.RetrySettings`
    [routes]                  op = "NAME"
    [ops.OP]                  `config.OpSettings`

Paths are taken from the file's own folder.

What a setting may be stands in `config` alone: each value is tried in the record that it is for, so every fault of a
file is found at once, and a new setting needs no line here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from os.path import realpath
from pathlib import Path
from typing import Any

from eaimw.config import (
    NAME_ALLOWED,
    NO_TARGET,
    TOKEN_ALLOWED,
    Address,
    HubSettings,
    OpSettings,
    TargetSettings,
    TlsSettings,
    is_name,
    is_token,
    parse_address,
)
from eaimw.errors import SettingsError, nearest, shown
from eaimw.policy import BreakerSettings, RetrySettings
from eaimw.toml_file import BadFile, Reading, parsed

SECTIONS = ("hub", "admin", "defaults", "targets", "routes", "ops")
BUILT_IN = "built in"
ANOTHER = "it must be another file"
# Tables within a target's, with the records that they are for.
_NESTED: dict[str, type[BreakerSettings | RetrySettings]] = {"breaker": BreakerSettings, "retry": RetrySettings}
_TARGET = tuple(each.name for each in fields(TargetSettings) if each.name not in _NESTED)
HUB_KEYS = ("listen", "breaker_log", "access_log", "tls_certificate", "tls_key", "tls_client_ca")
OP_KEYS = tuple(each.name for each in fields(OpSettings))
# As they are written below a target: `timeout`, `breaker.fail_threshold`.
KEYS = (*_TARGET, *(f"{table}.{each.name}" for table, record in _NESTED.items() for each in fields(record)))


@dataclass(frozen=True, slots=True)
class HubFile:
    """What a file says; None where it does not.

    origins: target -> key -> where its value came from. op_origins: the same of ops.
    """

    settings: HubSettings
    origins: Mapping[str, Mapping[str, str]]
    listen: Address | None
    breaker_log: Path | None
    access_log: Path | None = None
    admin_listen: str | None = None
    admin_token: str | None = field(default=None, repr=False)
    op_origins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tls: TlsSettings | None = None


def read_hub_file(path: Path) -> HubFile:
    """The file, checked. Raises Unusable if it cannot be read, BadFile with everything that is wrong in it."""
    return hub_of(parsed(path, "a hub.toml"), path)


def hub_of(data: dict[str, Any], path: Path) -> HubFile:
    """What tables like a hub.toml's say; path: the file that they stand in. Raises BadFile."""
    return _Reading(path, data).result()


class _Reading(Reading):
    """One reading of one file."""

    def result(self) -> HubFile:
        """The file's content. Raises BadFile."""
        self._known(self._data, SECTIONS, "")
        hub = self._table(self._data, "hub")
        self._known(hub, HUB_KEYS, "hub")
        listen, tls = self._listen(hub), self._tls(hub)
        log, access_log = self._path_of(hub, "breaker_log"), self._path_of(hub, "access_log")
        if is_same_file(log, access_log):
            self._faults.append(
                f"hub.access_log: it is {shown(hub['access_log'])}, which is the breaker log; {ANOTHER}"
            )
        admin_listen, token = self._admin()
        defaults = self._values(self._table(self._data, "defaults"), "defaults", may_have_url=False)
        targets: dict[str, TargetSettings | None] = {}
        origins: dict[str, dict[str, str]] = {}
        for name in self._table(self._data, "targets"):
            targets[name], origins[name] = self._target(name, defaults)
        if not targets:
            self._faults.append("targets: there is none; a hub needs at least one, as [targets.CORE] with its url")
        routes = self._routes(targets)
        ops, op_origins = self._ops()
        if self._faults:
            raise BadFile(self._path, self._faults)
        good = {name: target for name, target in targets.items() if target is not None}
        settings = HubSettings(good, routes, ops)
        return HubFile(settings, origins, listen, log, access_log, admin_listen, token, op_origins, tls)

    def _target(self, name: str, defaults: dict[str, Any]) -> tuple[TargetSettings | None, dict[str, str]]:
        place = f"targets.{name}"
        if not is_name(name) or name == NO_TARGET:
            self._faults.append(f"{place}: the name must be {NAME_ALLOWED}, and not {NO_TARGET} alone")
        table = self._table(self._table(self._data, "targets"), name, place)
        own = self._values(table, place)
        if "url" not in table:
            self._faults.append(f"{place}.url: it is missing; it must be {_allowed('url', None)}")
        origin = {key: place if key in own else "defaults" if key in defaults else BUILT_IN for key in KEYS}
        if "url" not in own:
            return None, origin
        return _record({**defaults, **own}), origin

    def _values(self, table: dict[str, Any], place: str, *, may_have_url: bool = True) -> dict[str, Any]:
        """The good values of a target's table by key, its breaker's too."""
        known = [key for key in _TARGET if may_have_url or key != "url"]
        found = {key: value for key, value in table.items() if key not in _NESTED}
        self._known(found, known, place, also=(*_NESTED,))
        for name, record in _NESTED.items():
            nested = self._table(table, name, f"{place}.{name}")
            self._known(nested, [each.name for each in fields(record)], f"{place}.{name}")
            found |= {f"{name}.{key}": value for key, value in nested.items()}
        good = {}
        for key, value in found.items():
            if key not in KEYS or (key == "url" and not may_have_url):
                continue
            allowed = _allowed(key, value)
            if allowed is None:
                good[key] = str(self._folder / value) if key == "ca_file" else value
            else:
                self._faults.append(f"{place}.{key}: it is {shown(value)}; it must be {allowed}")
        return good

    def _listen(self, hub: dict[str, Any]) -> Address | None:
        if "listen" not in hub:
            return None
        try:
            return parse_address(hub["listen"], "listen")
        except SettingsError as problem:
            self._faults.append(f"hub.listen: it is {shown(hub['listen'])}; it must be {problem.allowed}")
            return None

    def _path_of(self, hub: dict[str, Any], key: str) -> Path | None:
        if key not in hub:
            return None
        name = hub[key]
        if not isinstance(name, str) or not name or "\0" in name:
            self._faults.append(f"hub.{key}: it is {shown(name)}; it must be the path of a file")
            return None
        return self._folder / name

    def _tls(self, hub: dict[str, Any]) -> TlsSettings | None:
        certificate, key, client_ca = (
            self._path_of(hub, f"tls_{each}") for each in ("certificate", "key", "client_ca")
        )
        given = [each for each in HUB_KEYS if each.startswith("tls_") and each in hub]
        missing = [each for each in ("tls_certificate", "tls_key") if each not in hub]
        if given and missing:
            self._faults.append(f"hub.{given[0]}: it needs {' and '.join(missing)} beside it, which is not there")
        return None if certificate is None or key is None else TlsSettings(certificate, key, client_ca)

    def _admin(self) -> tuple[str | None, str | None]:
        """Where the admin plane listens, and its token: either may come from elsewhere, so each is judged by itself."""
        admin = self._table(self._data, "admin")
        self._known(admin, ("listen", "token"), "admin")
        listen, token = admin.get("listen"), admin.get("token")
        if listen is not None:
            try:
                parse_address(listen, "listen")
            except SettingsError as problem:
                self._faults.append(f"admin.listen: it is {shown(listen)}; it must be {problem.allowed}")
        if token is not None and (not isinstance(token, str) or not is_token(token)):
            self._faults.append(f"admin.token: it must be {TOKEN_ALLOWED}")
        return listen, token

    def _routes(self, targets: Iterable[str]) -> dict[str, str]:
        routes = self._table(self._data, "routes")
        for op, name in routes.items():
            if not is_name(op):
                self._faults.append(f"routes.{op}: the op must be {NAME_ALLOWED}")
            if not isinstance(name, str) or name not in targets:
                allowed = f"one of the targets ({', '.join(targets)})"
                self._faults.append(f"routes.{op}: it is {shown(name)}; it must be {allowed}{nearest(name, targets)}")
        return routes

    def _ops(self) -> tuple[dict[str, OpSettings], dict[str, dict[str, str]]]:
        tables = self._table(self._data, "ops")
        ops: dict[str, OpSettings] = {}
        origins: dict[str, dict[str, str]] = {}
        for op in tables:
            place = f"ops.{op}"
            if not is_name(op):
                self._faults.append(f"{place}: the op must be {NAME_ALLOWED}")
            table = self._table(tables, op, place)
            self._known(table, OP_KEYS, place)
            ops[op] = OpSettings()
            for key in [each for each in OP_KEYS if each in table]:
                try:
                    ops[op] = replace(ops[op], **{key: table[key]})
                except SettingsError as problem:
                    self._faults.append(f"{place}.{key}: it is {shown(table[key])}; it must be {problem.allowed}")
            origins[op] = {key: place if key in table else BUILT_IN for key in OP_KEYS}
        return ops, origins


def is_same_file(one: Path | None, other: Path | None) -> bool:
    """Do both lead to the same place, be it by a link?"""
    return one is not None and other is not None and realpath(one) == realpath(other)


def with_options(file: HubFile, options: Mapping[str, Any]) -> HubFile:
    """The file with these settings, by their keys, in place of every target's own. Raises SettingsError."""
    plain, nested = _parted(options)
    targets = {}
    for name, target in file.settings.targets.items():
        tables = {table: replace(getattr(target, table), **values) for table, values in nested.items()}
        targets[name] = replace(target, **plain, **tables)
    origins = {name: {**origin, **dict.fromkeys(options, "command line")} for name, origin in file.origins.items()}
    return replace(file, settings=replace(file.settings, targets=targets), origins=origins)


def value_of(target: TargetSettings, key: str) -> Any:
    """What is in force for a key as it is written in the file."""
    table, _, name = key.rpartition(".")
    return getattr(getattr(target, table) if table else target, name)


def _record(values: dict[str, Any]) -> TargetSettings:
    plain, nested = _parted(values)
    tables: dict[str, Any] = {table: _NESTED[table](**of_it) for table, of_it in nested.items()}
    return TargetSettings(**plain, **tables)


def _parted(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Values by key, as they are written in the file: a target's own, and those of each table within it."""
    plain = {key: value for key, value in values.items() if key in _TARGET}
    nested: dict[str, dict[str, Any]] = {}
    for key in values.keys() - plain.keys():
        table, _, name = key.partition(".")
        nested.setdefault(table, {})[name] = values[key]
    return plain, nested


def _allowed(key: str, value: Any) -> str | None:
    """None if the record takes the value, else what it allows."""
    try:
        _record({"url": "http://127.0.0.1/tx", key: value})
    except SettingsError as problem:
        return problem.allowed
    return None
