"""Wrong: a line for every failure while open, also where the state stays."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def report(self, target: str, code: str) -> None:
        super().report(target, code)
        if self.is_failure(code) and self.breakers[target].state == "OPEN":
            self.log_change(target, "CLOSED", "OPEN")


if __name__ == "__main__":
    run(Relay)
