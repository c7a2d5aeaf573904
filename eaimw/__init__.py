"""eaimw: an integration hub (EAI) in which no back-end drags another.

    from eaimw import Relay               # blocking, for any number of threads
    from eaimw import open_hub            # asyncio
    from eaimw.kernel.breaker import CircuitBreaker

Nothing is imported before it is asked for, so that a checkout's programs can say what they need on any Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaimw.app import Relay, open_hub, two_targets
    from eaimw.config import HubSettings, OpSettings, TargetSettings
    from eaimw.errors import EaimwError, SettingsError, Unusable
    from eaimw.hub import Hub
    from eaimw.policy import BreakerSettings, RetrySettings

__all__ = [
    "Relay",
    "open_hub",
    "two_targets",
    "Hub",
    "HubSettings",
    "TargetSettings",
    "BreakerSettings",
    "RetrySettings",
    "OpSettings",
    "EaimwError",
    "SettingsError",
    "Unusable",
]

_HOME = {
    "Relay": "app",
    "open_hub": "app",
    "two_targets": "app",
    "Hub": "hub",
    "HubSettings": "config",
    "TargetSettings": "config",
    "BreakerSettings": "policy",
    "RetrySettings": "policy",
    "OpSettings": "config",
    "EaimwError": "errors",
    "SettingsError": "errors",
    "Unusable": "errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"eaimw.{_HOME[name]}"), name)
    raise AttributeError(f"module 'eaimw' has no attribute {name!r}")
