"""Wrong: the log says CORE, whichever target it was."""

from __future__ import annotations

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def log_change(self, target: str, before: str, after: str) -> None:
        super().log_change("CORE", before, after)


if __name__ == "__main__":
    run(Relay)
