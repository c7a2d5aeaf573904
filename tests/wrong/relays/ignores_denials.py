"""Wrong: reports nothing for a denial, so that a denied probe leaves the circuit half-open for ever."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def report(self, target: str, code: str) -> None:
        if not code.startswith("B2"):
            super().report(target, code)


if __name__ == "__main__":
    run(Relay)
