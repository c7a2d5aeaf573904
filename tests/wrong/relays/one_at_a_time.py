"""Wrong: no threads: the next line is read when the last is answered."""

from __future__ import annotations

from typing import BinaryIO

from wrong.relays.learner import Learner, run

FAILS_AT = (4, 5)


class Relay(Learner):
    def run(self, lines: BinaryIO) -> None:
        for line in lines:
            self.relay_line(line)


if __name__ == "__main__":
    run(Relay)
