"""Wrong: a denial is no failure, except as the answer of a probe."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def is_probe_denied(self, target: str, code: str) -> bool:
        return self.breakers[target].state == "HALF_OPEN" and code.startswith("B2")

    def report(self, target: str, code: str) -> None:
        super().report(target, "E500" if self.is_probe_denied(target, code) else code)


if __name__ == "__main__":
    run(Relay)
