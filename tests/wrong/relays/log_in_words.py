"""Wrong: the log is in a form of its own."""

from __future__ import annotations

from datetime import UTC, datetime

from wrong.relays.learner import Learner, run

FAILS_AT = (6,)


class Relay(Learner):
    def log_change(self, target: str, before: str, after: str) -> None:
        self.write(f"{datetime.now(UTC).isoformat()} {target} changed from {before} to {after}")


if __name__ == "__main__":
    run(Relay)
