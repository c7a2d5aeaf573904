"""Wrong: E901 is not counted as a failure."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def is_failure(self, code: str) -> bool:
        return code in ("E500", "E902")


if __name__ == "__main__":
    run(Relay)
