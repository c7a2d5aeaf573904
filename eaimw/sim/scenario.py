"""A scenario: a hub, its targets and loads over some time, and what must hold at the end; read from TOML.

    title = "CORE becomes slow"
    seconds = 60                        # in which the loads send
    expect = ["CLAIM.ok_share >= 0.999", "CORE.openings >= 1"]

    [hub.targets.CORE]                  # as in a hub.toml; or hub = "hub.toml", a path beside this file
    timeout = 0.5

    [[loads]]                           # who calls, and when
    target = "CORE"
    op = "BALANCE"
    rate = 20
    fields = { account = "A-1" }

    [targets.CORE]                      # what the simulated target can do
    service = { p50 = 0.02, p99 = 0.2 } # seconds; a number: always as long; { mean = 0.05 }: exponential
    servers = 8
    queue = 100
    down = [[40, 45]]                   # its process is gone

    [[targets.CORE.faults]]             # its modes by time, as POST /_ctl has them
    at = 10
    until = 30
    mode = "slow"

    [[targets.CORE.network]]            # conditions of the link to it, from `at` on
    at = 30
    latency = 0.02

As with a hub.toml, every fault of a file is found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from eaimw.config import HubSettings, is_name
from eaimw.errors import Unusable, nearest, shown
from eaimw.hub_file import hub_of
from eaimw.sim.capacity import Capacity
from eaimw.sim.durations import Duration, Exponential, Fixed, Lognormal, check_number
from eaimw.sim.expectations import Expectation
from eaimw.sim.link import Conditions, Way
from eaimw.sim.load import Bursts, ClosedLoop, Constant, Load, Piece, Poisson, Process
from eaimw.sim.modes import MODES, settings_from
from eaimw.sim.play import Backend
from eaimw.sim.timeline import NORMAL, Fault, Timeline
from eaimw.toml_file import BadFile, Reading, parsed

__all__ = ["Scenario", "read_scenario", "scenario_of"]

KEYS = ("title", "seconds", "expect", "hub", "loads", "targets")
HUB_SECTIONS = ("defaults", "targets", "routes", "ops")
# arrivals -> what it takes.
ARRIVALS: Final[dict[str, tuple[str, ...]]] = {
    "poisson": ("rate",),
    "constant": ("rate",),
    "bursts": ("pieces",),
    "closed": ("callers", "think"),
}
LOAD_KEYS = ("name", "target", "op", "fields", "arrivals")
TARGET_KEYS = ("service", "servers", "queue", "faults", "network", "down")
WAY_KEYS = ("latency", "pieces")
LINK_KEYS = ("connect", "reset_within", "idle_limit")
LONGEST = 86_400.0
MOST_SENT = 1_000_000  # what a run keeps of each is some hundred bytes
DURATION = "a number of seconds, { mean = 0.05 } or { p50 = 0.02, p99 = 0.2 }"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What `play` takes, and what must hold of the record. seconds: in which the loads send."""

    title: str
    seconds: float
    settings: HubSettings
    backends: Mapping[str, Backend]
    loads: tuple[Load, ...]
    expect: tuple[Expectation, ...] = field(default=())


def read_scenario(path: Path) -> Scenario:
    """The file, checked. Raises Unusable if it cannot be read, BadFile with everything that is wrong in it."""
    return scenario_of(parsed(path, "a scenario, such as examples/scenarios/slow-core.toml"), path)


def scenario_of(data: dict[str, Any], path: Path) -> Scenario:
    """What the tables of a scenario's file say. Raises BadFile."""
    return _Reading(path, data).result()


class _Reading(Reading):
    """One reading of one file."""

    def result(self) -> Scenario:
        """The scenario. Raises BadFile."""
        data = self._data
        self._known(data, KEYS, "")
        title = data.get("title", self._path.stem)
        if not isinstance(title, str):
            self._faults.append(f"title: it is {shown(title)}; it must be a string")
        seconds = self._seconds()
        settings = self._hub()
        names = self._target_names(settings)
        self._check_urls(settings)
        loads = [self._load(table, place, names) for place, table in self._tables(data, "loads")]
        if not loads:
            self._faults.append("loads: there is none; somebody must call, as [[loads]] with target and rate")
        self._check_loads([load for load in loads if load is not None], seconds)
        backends = {}
        for name in self._table(data, "targets"):
            self._target_known(name, f"targets.{name}", names)
            backends[name] = self._backend(self._table(data["targets"], name, f"targets.{name}"), f"targets.{name}")
        expect = self._expectations(names)
        if self._faults or settings is None or seconds is None:
            raise BadFile(self._path, self._faults)
        return Scenario(title, seconds, settings, backends, tuple(load for load in loads if load), expect)

    def _tried(self, place: str, make: Callable[..., T], *given: Any, **named: Any) -> T | None:
        """What it makes of these; or None, and the fault noted."""
        try:
            return make(*given, **named)
        except ValueError as problem:
            self._faults.append(f"{place}: {problem}")
            return None

    def _tables(self, data: dict[str, Any], key: str, before: str = "") -> list[tuple[str, dict[str, Any]]]:
        """The tables of an array, each with its place."""
        place = f"{before}{key}"
        tables = data.get(key, [])
        if not isinstance(tables, list):
            self._faults.append(f"{place}: it is {shown(tables)}; it must be an array of tables, [[{place}]]")
            return []
        found = []
        for number, table in enumerate(tables, 1):
            if isinstance(table, dict):
                found.append((f"{place} {number}", table))
            else:
                self._faults.append(f"{place} {number}: it is {shown(table)}; it must be a table")
        return found

    def _target_known(self, name: object, place: str, names: list[str] | None) -> None:
        if names is not None and name not in names:
            known = ", ".join(names)
            self._faults.append(f"{place}: there is no target {shown(name)}; there are {known}{nearest(name, names)}")

    def _seconds(self) -> float | None:
        if "seconds" not in self._data:
            self._faults.append(f"seconds: it is missing; it must be a number above 0, at most {LONGEST:,.0f}")
            return None
        before, value = len(self._faults), self._data["seconds"]
        self._tried("seconds", check_number, "it", value, above=0, most=LONGEST)
        return float(value) if len(self._faults) == before else None

    # The hub.

    def _hub(self) -> HubSettings | None:
        hub = self._data.get("hub")
        if isinstance(hub, str) and hub:
            path = self._folder / hub
            try:
                return hub_of(parsed(path, "a hub.toml"), path).settings
            except (Unusable, BadFile) as problem:
                self._faults += [f"hub: {line}" for line in str(problem).splitlines()]
                return None
        if not isinstance(hub, dict):
            found = "it is missing" if hub is None else f"it is {shown(hub)}"
            self._faults.append(
                f"hub: {found}; it must be the path of a hub.toml, or tables such as [hub.targets.CORE]"
            )
            return None
        self._known(hub, HUB_SECTIONS, "hub")
        data = {key: table for key, table in hub.items() if key in HUB_SECTIONS}
        targets = data.get("targets")
        if isinstance(targets, dict):  # where they are matters to nobody in here
            data["targets"] = {
                name: {"url": f"http://10.0.{number // 250}.{number % 250 + 1}/tx", **table}
                if isinstance(table, dict) else table
                for number, (name, table) in enumerate(targets.items())
            }  # fmt: skip
        try:
            return hub_of(data, self._path).settings
        except BadFile as problem:
            self._faults += [f"hub.{fault}" for fault in problem.faults]
            return None

    def _target_names(self, settings: HubSettings | None) -> list[str] | None:
        """Of the hub, also where it has faults; None: they cannot be known."""
        if settings is not None:
            return [*settings.targets]
        hub = self._data.get("hub")
        targets = hub.get("targets") if isinstance(hub, dict) else None
        return [*targets] if isinstance(targets, dict) else None

    def _check_urls(self, settings: HubSettings | None) -> None:
        """What a simulated network can be asked for."""
        seen: dict[tuple[str, int], str] = {}
        targets = {} if settings is None else settings.targets
        for name, target in targets.items():
            place, end = f"hub.targets.{name}.url", target.endpoint
            if end.tls:
                self._faults.append(f"{place}: it is {target.url}; it must be http here: TLS is not simulated")
            other = seen.setdefault((end.host, end.port), name)
            if other != name:
                self._faults.append(f"{place}: it is {target.url}; it must have another host or port than {other}'s")

    # Loads.

    def _load(self, table: dict[str, Any], place: str, names: list[str] | None) -> Load | None:
        kind = table.get("arrivals", "poisson")
        if not isinstance(kind, str) or kind not in ARRIVALS:
            allowed = f"one of {', '.join(ARRIVALS)}{nearest(kind, ARRIVALS)}"
            self._faults.append(f"{place}.arrivals: it is {shown(kind)}; it must be {allowed}")
            return None
        self._known(table, (*LOAD_KEYS, *ARRIVALS[kind]), place)
        target, op, fields = table.get("target"), table.get("op"), table.get("fields", {})
        if not isinstance(target, str):
            self._faults.append(f"{place}.target: it is {shown(target)}; it must be the name of a target")
            return None
        self._target_known(target, f"{place}.target", names)
        if op is not None and not (isinstance(op, str) and is_name(op)):
            self._faults.append(f"{place}.op: it is {shown(op)}; it must be a string of 1 to 64 of A-Z a-z 0-9 _ . -")
        if not isinstance(fields, dict):
            self._faults.append(f"{place}.fields: it is {shown(fields)}; it must be a table of a transaction's members")
            return None
        name = table.get("name", f"{target}.{op}" if op else target)
        if not isinstance(name, str):
            self._faults.append(f"{place}.name: it is {shown(name)}; it must be a string")
            return None
        process = self._process(kind, table, place)
        if process is None:
            return None
        return self._tried(place, Load, name, target, process, op, fields)

    def _process(self, kind: str, table: dict[str, Any], place: str) -> Process | None:
        needed = ARRIVALS[kind][0]
        if needed not in table:
            self._faults.append(f"{place}.{needed}: it is missing; arrivals are {kind}")
            return None
        value = table[needed]
        if kind == "bursts":
            return self._bursts(value, f"{place}.pieces")
        if kind == "closed":
            think = self._duration(table.get("think", 0), f"{place}.think")
            return None if think is None else self._tried(place, ClosedLoop, value, think)
        return self._tried(place, Poisson, value) if kind == "poisson" else self._tried(place, Constant, value)

    def _bursts(self, value: object, place: str) -> Process | None:
        if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
            allowed = "an array of [seconds, rate], such as [[30, 10], [2, 200]]"
            self._faults.append(f"{place}: it is {shown(value)}; it must be {allowed}")
            return None
        pieces = [self._tried(f"{place} {n}", Piece, *each) for n, each in enumerate(value, 1)]
        if None in pieces:
            return None
        return self._tried(place, Bursts, tuple(pieces))

    def _check_loads(self, loads: list[Load], seconds: float | None) -> None:
        names = [load.name for load in loads]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._faults.append(f"loads: two have the name {shown(name)}; give each a name of its own")
        sent = sum(_expected(load.process, seconds or 0.0) for load in loads)
        if sent > MOST_SENT:
            self._faults.append(f"loads: they would send {sent:,.0f} transactions; at most {MOST_SENT:,} are allowed")

    # Targets.

    def _backend(self, table: dict[str, Any], place: str) -> Backend:
        self._known(table, TARGET_KEYS, place)
        good: dict[str, Any] = {}
        for key in [key for key in ("service", "servers", "queue") if key in table]:
            value = table[key]
            if key == "service":
                value = self._duration(value, f"{place}.service")
            if value is not None and self._tried(place, Capacity, **{key: value}) is not None:
                good[key] = value
        faults = [self._fault(one, where) for where, one in self._tables(table, "faults", f"{place}.")]
        timeline = self._tried(f"{place}.faults", Timeline, tuple(fault for fault in faults if fault))
        network = [self._phase(one, where) for where, one in self._tables(table, "network", f"{place}.")]
        return Backend(
            capacity=Capacity(**good) if good else None,
            timeline=timeline or Timeline(),
            conditions=sorted((phase for phase in network if phase), key=lambda phase: phase[0]),
            down=self._down(table.get("down", []), f"{place}.down"),
        )

    def _down(self, value: object, place: str) -> list[tuple[float, float]]:
        if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
            self._faults.append(f"{place}: it is {shown(value)}; it must be an array of [from, until], as [[40, 45]]")
            return []
        before = len(self._faults)
        for each in value:
            self._tried(place, Backend, down=[each])
        if len(self._faults) > before:
            return []
        times = sorted((begin, end) for begin, end in value)
        return [] if self._tried(place, Backend, down=times) is None else times

    def _duration(self, value: object, place: str) -> Duration | None:
        if isinstance(value, dict):
            if value.keys() == {"mean"}:
                return self._tried(place, Exponential, **value)
            if value.keys() == {"p50", "p99"}:
                return self._tried(place, Lognormal, **value)
            self._faults.append(f"{place}: it is {shown(value)}; it must be {DURATION}")
            return None
        return self._tried(place, Fixed, value)

    def _fault(self, table: dict[str, Any], place: str) -> Fault | None:
        before = len(self._faults)
        for key, allowed in (("at", "seconds from the start"), ("mode", f"one of {', '.join(MODES)}")):
            if key not in table:
                self._faults.append(f"{place}.{key}: it is missing; it must be {allowed}")
        at = table.get("at", 0.0)
        if self._tried(place, Fault, at, NORMAL) is not None and "until" in table:
            self._tried(place, Fault, at, NORMAL, table["until"])
        mode = {"mode": table.get("mode", "normal")}
        if self._tried(place, settings_from, mode, "normal") is not None and "mode" in table:
            for key in [key for key in table if key not in ("at", "until", "mode")]:
                self._tried(place, settings_from, {**mode, key: table[key]}, "normal")
        return Fault.of(table) if len(self._faults) == before else None

    def _phase(self, table: dict[str, Any], place: str) -> tuple[float, Conditions] | None:
        before = len(self._faults)
        self._known(table, ("at", *WAY_KEYS, *LINK_KEYS), place)
        at = table.get("at", 0.0)
        self._tried(place, check_number, "at", at, least=0)
        way = {key: table[key] for key in WAY_KEYS if key in table}
        link = {key: table[key] for key in LINK_KEYS if key in table}
        for key in ("latency", "reset_within", "idle_limit"):
            if key in table:
                self._tried(place, check_number, key, table[key], least=0)
        if len(self._faults) > before:
            return None
        one_way = self._tried(place, Way, **way)
        made = self._tried(place, Conditions, **link)
        return None if made is None or one_way is None else (at, replace(made, there=one_way, back=one_way))

    # What must hold.

    def _expectations(self, names: list[str] | None) -> tuple[Expectation, ...]:
        given = self._data.get("expect", [])
        if not isinstance(given, list):
            self._faults.append(f"expect: it is {shown(given)}; it must be an array of strings")
            return ()
        found = [self._tried(f"expect {n}", Expectation.of, each, names) for n, each in enumerate(given, 1)]
        return tuple(each for each in found if each is not None)


def _expected(process: Process, seconds: float) -> float:
    """About how many it sends. A closed loop's depend on the answers: taken for ten a second of each caller."""
    if isinstance(process, ClosedLoop):
        return min(process.callers, MOST_SENT) * (1 + 10 * seconds)
    if isinstance(process, Bursts):
        pieces = process.pieces
        return seconds * sum(each.rate * each.seconds for each in pieces) / sum(each.seconds for each in pieces)
    return seconds * process.rate
