"""Build hook: a checkout whose symbolic link was lost must not become a wheel without a breaker.

`eaimw/kernel/breaker.py` is a link to `breaker/breaker.py`. Some unpackers write a link as a text file that
holds its target's path; such a file imports without error and then lacks everything.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinkCheck(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        linked = Path(self.root, "eaimw/kernel/breaker.py")
        if "class CircuitBreaker" not in linked.read_text(encoding="utf-8"):
            raise SystemExit(
                f"{linked} is not the breaker: the symbolic link to ../../breaker/breaker.py was lost "
                "in unpacking; clone with git, or copy breaker/breaker.py there"
            )
