"""Wrong: counts every E code as a failure, also E400, with which a healthy target has answered."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def is_failure(self, code: str) -> bool:
        return code.startswith("E")


if __name__ == "__main__":
    run(Relay)
