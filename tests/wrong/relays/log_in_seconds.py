"""Wrong: the time in the log is a number of seconds, not ISO 8601."""

from __future__ import annotations

import time

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def log_change(self, target: str, before: str, after: str) -> None:
        self.write(f"{time.time():.6f}|{target}|{before}->{after}")


if __name__ == "__main__":
    run(Relay)
