"""Settings that can be used and make no sense: what can never trip, never recover, never fit, or protects nobody.

`config` and `policy` say of each value by itself whether it can be used. Here they are held against each other, and
against what is expected of a target (expected_rate, expected_latency, expected_p99). A rule is a short function with
its source; what is not known (0) is reasoned with by none. Nothing is read, nothing is changed.
"""

from __future__ import annotations

from eaimw.config import HubSettings
from eaimw.sense.calls import CALLS
from eaimw.sense.circuit import CIRCUIT
from eaimw.sense.effect import HUB, Origins, origins_of
from eaimw.sense.finding import Finding, Subject

__all__ = ["Finding", "findings"]


def findings(settings: HubSettings, origins: Origins | None = None) -> list[Finding]:
    """Everything that makes no sense, by target. origins: as in `hub_file.HubFile`; None: they come from no file."""
    origins = origins_of(settings) if origins is None else origins
    found: list[Finding] = []
    for name, target in settings.targets.items():
        ops = {op: of_it for op, of_it in settings.ops.items() if settings.routes.get(op, name) == name}
        seen = Subject(name, target, ops, origins[name])
        for rule in CALLS if target.breaker.mode == "off" else (*CALLS, *CIRCUIT):
            found += rule(seen)
    for of_hub in HUB:
        found += of_hub(settings, origins)
    return found
