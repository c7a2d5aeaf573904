"""What is written and does nothing; and operations against the targets that they go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from eaimw.config import HubSettings, TargetSettings
from eaimw.hub_file import BUILT_IN, KEYS, value_of
from eaimw.sense.finding import Finding, said

Origins = Mapping[str, Mapping[str, str]]
Does = Callable[[TargetSettings], bool]

_PLAIN = TargetSettings("http://127.0.0.1/tx")

# Keys; what switches them on; whether it does; why they have no effect if not; what to do.
_SWITCHED: Sequence[tuple[tuple[str, ...], str, Does, str, str]] = (
    (
        ("breaker.fail_threshold",),
        "breaker.rules",
        lambda target: "consecutive" in target.breaker.rules,
        'rules has no "consecutive"',
        'add "consecutive" to rules',
    ),
    (
        ("breaker.window", "breaker.window_calls", "breaker.min_calls", "breaker.failure_ratio", "breaker.slow_ratio"),
        "breaker.rules",
        lambda target: "ratio" in target.breaker.rules,
        'rules has no "ratio"',
        'add "ratio" to rules',
    ),
    (
        ("breaker.window",),
        "breaker.window_calls",
        lambda target: not target.breaker.window_calls,
        "window_calls is not 0 and counts in its place",
        "set window_calls to 0",
    ),
    (
        ("breaker.slow_call",),
        "breaker.rules",
        lambda target: "ratio" in target.breaker.rules or target.breaker.stuck_calls > 0,
        'rules has no "ratio", and stuck_calls is 0',
        'add "ratio" to rules, set stuck_calls',
    ),
    (
        ("breaker.slow_ratio",),
        "breaker.slow_call",
        lambda target: target.breaker.slow_call > 0,
        "slow_call is 0, so no call is slow",
        "set slow_call to some seconds",
    ),
    (
        ("breaker.reopen_max",),
        "breaker.reopen_factor",
        lambda target: target.breaker.reopen_factor > 1,
        "reopen_factor is 1, so no wait grows",
        "set reopen_factor to 2",
    ),
    (
        ("retry.base", "retry.cap", "retry.budget_ratio", "retry.budget_min"),
        "retry.attempts",
        lambda target: target.retry.attempts > 1,
        "attempts is 1, so nothing is tried again",
        "set attempts to 2 or 3",
    ),
)


def origins_of(settings: HubSettings) -> Origins:
    """For settings that come from no file: what is not as it is built in was written for its target."""
    return {
        name: {key: BUILT_IN if value_of(target, key) == value_of(_PLAIN, key) else f"targets.{name}" for key in KEYS}
        for name, target in settings.targets.items()
    }


def written_without_effect(settings: HubSettings, origins: Origins) -> Iterator[Finding]:
    """A key of a target's tables, or of [defaults], that no target with this value asks for.

    Where the switch is written too, and the value is the one that is built in, nobody expects anything of it: so it is
    in what `eaimw config` prints. Of a breaker that is off no key is told.
    """
    told = set()
    for keys, switch, acts, reason, remedy in _SWITCHED:
        for key in keys:
            for place, names in _written(key, origins).items():
                targets = [settings.targets[name] for name in names]
                if (place, key) in told or any(_is_off(target, key) or acts(target) for target in targets):
                    continue
                is_said_off = all(origins[name][switch] != BUILT_IN for name in names)
                value = value_of(targets[0], key)
                if is_said_off and value == value_of(_PLAIN, key):
                    continue
                told.add((place, key))
                yield Finding(
                    "warning",
                    f"{place}.{key}",
                    value,
                    place,
                    f"it has no effect: {reason}",
                    f"{remedy}, or leave it out",
                )


def op_does_not_fit(settings: HubSettings, _: Origins) -> Iterator[Finding]:
    """An op's timeout can only narrow its target's: longer it has no effect, and below min_call it refuses budgets."""
    for op, of_it in settings.ops.items():
        if not of_it.timeout:
            continue
        key, place = f"ops.{op}.timeout", f"ops.{op}"
        names = [settings.routes[op]] if op in settings.routes else list(settings.targets)
        longest = max(settings.targets[name].timeout for name in names)
        if of_it.timeout > longest:
            yield Finding(
                "warning",
                key,
                of_it.timeout,
                place,
                f"the timeout of {_listed(names)} is {said(longest)} s{'' if len(names) == 1 else ' at most'}, so it "
                "has no effect",
                f"set it below {said(longest)} seconds, or leave it out",
            )
        for name in names:
            least = settings.targets[name].min_call
            if of_it.timeout <= least < settings.targets[name].timeout:
                yield Finding(
                    "error",
                    key,
                    of_it.timeout,
                    place,
                    f"a caller of {name} who has as much time left as this is refused (E906): min_call is "
                    f"{said(least)} s",
                    f"set it above {said(least)} seconds, or min_call below",
                )


def _written(key: str, origins: Origins) -> dict[str, list[str]]:
    """The places where the key is written, each with the targets that have its value from there."""
    places: dict[str, list[str]] = {}
    for name, origin in origins.items():
        if origin[key] != BUILT_IN:
            places.setdefault(origin[key], []).append(name)
    return places


def _is_off(target: TargetSettings, key: str) -> bool:
    return key.startswith("breaker.") and target.breaker.mode == "off"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "its targets"


HUB: tuple[Callable[[HubSettings, Origins], Iterator[Finding]], ...] = (written_without_effect, op_does_not_fit)
