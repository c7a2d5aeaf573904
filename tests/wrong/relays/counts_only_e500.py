"""Wrong: only E500 counts; a target that hangs or cannot be reached is called for ever."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def is_failure(self, code: str) -> bool:
        return code == "E500"


if __name__ == "__main__":
    run(Relay)
