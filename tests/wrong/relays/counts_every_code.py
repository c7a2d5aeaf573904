"""Not there yet: counts every code but 0000 as a failure, as a learner's does until step 7."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (7,)


class Relay(Learner):
    def is_failure(self, code: str) -> bool:
        return code != "0000"


if __name__ == "__main__":
    run(Relay)
