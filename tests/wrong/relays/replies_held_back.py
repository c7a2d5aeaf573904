"""Wrong: replies are held back until the input ends. No step can see what the relay does."""

from __future__ import annotations

import io
from typing import BinaryIO

from wrong.relays.learner import Learner, run

FAILS_AT = (3, 4, 5, 6, 7)


class Relay(Learner):
    def run(self, lines: BinaryIO) -> None:
        super().run(io.BytesIO(lines.read()))


if __name__ == "__main__":
    run(Relay)
