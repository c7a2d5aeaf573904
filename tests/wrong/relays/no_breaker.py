"""Wrong: places, but no breaker. Steps 5 and 7 look at an open circuit too, and 6 at its log."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (3, 5, 6, 7)


class Relay(Learner):
    def ask(self, target: str) -> bool:
        return True

    def report(self, target: str, code: str) -> None:
        pass


if __name__ == "__main__":
    run(Relay)
