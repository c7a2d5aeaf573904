"""The hub.toml read again while it runs, on SIGHUP and POST /reload: what changes at once, what changes nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import command
from relayed import NOBODY, Json, Running, Say, http, ok, peer, tx
from served import direct, eventually, get

from eaimw.differences import differences
from eaimw.hub_file import hub_of

HUB = """
[hub]
listen = "127.0.0.1:0"
breaker_log = "breaker.log"
[admin]
listen = "127.0.0.1:0"
[targets.CORE]
url = "{core}"
{more}
[targets.CLAIM]
url = "{nobody}"
"""


class Hub:
    """`eaimw serve` over a file that a story may write anew."""

    def __init__(self, running: Running, file: Path, core: str) -> None:
        self.running, self.file, self.core = running, file, core
        running.says("admin on http://")
        lines = dict(line.split(" on ", 1) for line in running.errors.splitlines() if " on http" in line)
        self.url, self.admin = lines["listening"], lines["admin"]

    def write(self, more: str, text: str = HUB) -> None:
        self.file.write_text(text.format(core=self.core, nobody=NOBODY, more=more), encoding="utf-8")

    def reload(self) -> Any:
        answer = get(self.admin + "/reload", method="POST")
        return answer.status_code, answer.json()

    def hang_up(self, says: str) -> None:
        self.running.process.send_signal(signal.SIGHUP)
        self.running.says(says)

    def ask(self, number: int | str, target: str = "CORE", **more: object) -> Json:
        with direct() as session:
            answer: Json = session.post(self.url + "/tx", json=tx(number, target, **more), timeout=20).json()
            return answer

    def target(self, name: str = "CORE") -> Json:
        answer: Json = get(f"{self.admin}/targets/{name}").json()
        return answer


@contextmanager
def serving(folder: Path, core: str, more: str = "") -> Iterator[Hub]:
    file = folder / "hub.toml"
    file.write_text(HUB.format(core=core, nobody=NOBODY, more=more), encoding="utf-8")
    with command("serve", str(file), cwd=folder) as running:
        yield Hub(running, file, core)
        running.process.terminate()
        assert running.wait() == 0


def ill(request: Json) -> Say:
    return http(b'{"code":"E500"}')


def test_a_good_file_applies_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """SIGHUP: the limit, the timeout and the breaker's wait are new; the open circuit and the counts are as before."""
    with peer(ill) as core, serving(tmp_path, core.url, "breaker = { fail_threshold = 2 }") as hub:
        assert [hub.ask(number)["code"] for number in range(3)] == ["E500", "E500", "E904"]
        hub.write("max_inflight = 7\nbreaker = { fail_threshold = 2, reset_timeout = 0.0 }")
        hub.hang_up("reload: targets.CORE.max_inflight: 10 -> 7")
        hub.running.says("reload: targets.CORE.breaker.reset_timeout: 10.0 -> 0.0")
        status = hub.target()
        assert (status["state"], status["max_inflight"]) == ("OPEN", 7)
        assert status["codes"] == {"E500": 2, "E904": 1}
        assert hub.ask("probe")["code"] == "E500", "the wait is over now"


def test_a_bad_file_changes_nothing_and_says_why(tmp_path: Path) -> None:
    """POST /reload: 422 with every fault; the hub serves as before, and so it does after a CA file that is none."""
    with peer() as core, serving(tmp_path, core.url) as hub:
        hub.write("max_inflight = 0\ntimeuot = 3")
        status, answer = hub.reload()
        assert status == 422
        assert [fault.partition("hub.toml: ")[2][:28] for fault in answer["faults"]] == [
            "targets.CORE.timeuot: unknow", "targets.CORE.max_inflight: i",
        ]  # fmt: skip
        hub.running.says("reload: nothing has changed")
        hub.write('max_inflight = 3\nurl = "https://127.0.0.1:1/tx"\nca_file = "none.pem"'.replace("url", "# url", 1))
        hub.file.write_text(hub.file.read_text(encoding="utf-8").replace("http://", "https://"), encoding="utf-8")
        status, answer = hub.reload()
        assert (status, "ca_file of CORE" in answer["faults"][0]) == (422, True)
        assert hub.target()["max_inflight"] == 10
        assert hub.ask(1)["code"] == "0000"
        hub.file.unlink()
        assert hub.reload()[0] == 422
        assert hub.ask(2)["code"] == "0000"


def test_targets_come_and_go(tmp_path: Path) -> None:
    """A removed one answers what is in flight, is E903 for what is new, and its counts stay and go on."""

    def slow(request: Json) -> Say:
        return ok(request)._replace(after=1.5 if request["tx_id"] == "T-slow" else 0.0)

    with peer(slow) as core, serving(tmp_path, core.url) as hub:
        assert hub.ask(1)["code"] == "0000"
        replies: list[Json] = []
        waiting = threading.Thread(target=lambda: replies.append(hub.ask("slow", timeout_ms=20_000)))
        waiting.start()
        eventually(lambda: hub.target()["inflight"] == 1)
        hub.write("", HUB.replace("targets.CORE", "targets.CARDS"))
        assert hub.reload() == (200, {"changed": ["targets.CORE: removed", "targets.CARDS: new"], "needs_restart": []})
        assert hub.ask(2)["code"] == "E903"
        assert hub.ask(3, "CARDS")["code"] == "0000"
        waiting.join()
        assert replies[0]["code"] == "0000"
        hub.write("")
        assert hub.reload()[0] == 200
        assert hub.ask(4)["code"] == "0000"
        assert hub.target()["codes"] == {"0000": 3}
        metrics = get(hub.admin + "/metrics").text
        assert 'eaimw_transactions_total{code="0000",target="CARDS"} 1.0' in metrics
        assert 'eaimw_transactions_total{code="0000",target="CORE"} 3.0' in metrics


def test_what_needs_a_restart_is_said_and_not_done(tmp_path: Path) -> None:
    """Where it listens and its logs are opened once."""
    with peer() as core, serving(tmp_path, core.url) as hub:
        hub.write("", HUB.replace('breaker_log = "breaker.log"', 'breaker_log = "other.log"'))
        status, answer = hub.reload()
        assert (status, answer["changed"]) == (200, [])
        assert [line.partition(":")[0] for line in answer["needs_restart"]] == ["hub.breaker_log"]
        assert not (tmp_path / "other.log").exists()
        hub.running.says("other.log (after a restart)")
        hub.hang_up("reload: the file says what it said before")


def test_an_option_still_wins_after_a_reload(tmp_path: Path) -> None:
    """`--max-inflight` of the command line holds for every target, whatever the file says now."""
    file = tmp_path / "hub.toml"
    file.write_text(f'[targets.CORE]\nurl = "{NOBODY}"\nmax_inflight = 4\n', encoding="utf-8")
    with command(
        "relay", "--config", str(file), "--max-inflight", "9", "--admin", "127.0.0.1:0", cwd=tmp_path
    ) as relay:
        relay.says("admin on http://")
        admin = relay.errors.split("admin on ")[1].split()[0]
        file.write_text(f'[targets.CORE]\nurl = "{NOBODY}"\nmax_inflight = 5\ntimeout = 1.0\n', encoding="utf-8")
        answer = get(admin + "/reload", method="POST").json()
        assert answer == {"changed": ["targets.CORE.timeout: 3.0 -> 1.0"], "needs_restart": []}
        assert get(admin + "/targets/CORE").json()["max_inflight"] == 9
        relay.close_input()
        assert relay.wait() == 0


def test_without_a_file_there_is_nothing_to_read_again(tmp_path: Path) -> None:
    """409, and what to do; SIGHUP makes the logs anew and nothing else. GET is no way to ask for it."""
    with command("relay", "--admin", "127.0.0.1:0", cwd=tmp_path) as relay:
        relay.says("admin on http://")
        admin = relay.errors.split("admin on ")[1].split()[0]
        answer = get(admin + "/reload", method="POST")
        assert (answer.status_code, "--config" in answer.json()["error"]) == (409, True)
        assert get(admin + "/reload").status_code == 405
        relay.process.send_signal(signal.SIGHUP)
        relay.close_input()
        assert relay.wait() == 0
        assert "reload" not in relay.errors


def test_the_lines_of_a_difference() -> None:
    """Each names its place, the value before and the value now; routes and ops too; nothing, if all is the same."""

    def read(**tables: Any) -> Any:
        targets = {"CORE": {"url": "http://h/tx"}, "CLAIM": {"url": "http://h/tx"}}
        return hub_of({"targets": targets, **tables}, Path("hub.toml"))

    before = read(routes={"PAY": "CORE", "GET": "CORE"}, ops={"PAY": {"read": True}})
    after = read(
        defaults={"breaker": {"rules": ["ratio"]}},
        routes={"PAY": "CLAIM", "NEW": "CORE"},
        ops={"PAY": {"timeout": 2.0}},
        admin={"token": "secret"},
        hub={"listen": "127.0.0.1:80"},
    )
    assert differences(before, before) == ([], [], [])
    assert differences(before, after) == (
        [],
        [
            'targets.CORE.breaker.rules: ["consecutive"] -> ["ratio"]',
            'targets.CLAIM.breaker.rules: ["consecutive"] -> ["ratio"]',
            "routes.GET: removed",
            'routes.PAY: "CORE" -> "CLAIM"',
            "routes.NEW: new",
            "ops.PAY.read: true -> false",
            "ops.PAY.timeout: 0.0 -> 2.0",
        ],
        ["hub.listen: none -> 127.0.0.1:80", "admin.token: another one"],
    )


@pytest.mark.parametrize("times", [12])
def test_many_at_once_are_taken_one_after_another(tmp_path: Path, times: int) -> None:
    """Beyond a few that wait the answer is to ask again; each of the others is whole."""
    with peer() as core, serving(tmp_path, core.url) as hub:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(hub.reload()[0])) for _ in range(times)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) <= {200, 422}
        assert 200 in answers
        assert hub.ask(1)["code"] == "0000"


def test_a_file_that_cannot_be_read_to_its_end_keeps_nobody(tmp_path: Path) -> None:
    """A pipe that nobody writes to, as a disk that hangs: SIGHUP; calls are served, and SIGTERM ends the hub."""
    with peer() as core, serving(tmp_path, core.url) as hub:
        hub.file.unlink()
        os.mkfifo(hub.file)
        hub.running.process.send_signal(signal.SIGHUP)
        hub.running.process.send_signal(signal.SIGHUP)
        assert hub.ask(1)["code"] == "0000"
