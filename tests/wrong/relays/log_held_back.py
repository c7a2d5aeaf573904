"""Wrong: the log is written when the relay ends."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def write(self, line: str) -> None:
        self.log.write(line + "\n")


if __name__ == "__main__":
    run(Relay)
