"""Wrong: the change that allow() makes, OPEN to HALF_OPEN, is not logged."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def ask(self, target: str) -> bool:
        return self.breakers[target].allow()


if __name__ == "__main__":
    run(Relay)
