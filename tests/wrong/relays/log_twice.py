"""Wrong: each change is logged twice."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def write(self, line: str) -> None:
        super().write(line)
        super().write(line)


if __name__ == "__main__":
    run(Relay)
