"""`eaimw grade --listen`: the same steps through HTTP, for a relay that serves."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import COMMAND
from served import ROOT, eventually
from test_grade import failed, is_running, relay_file

from eaimw.cli.grade import grade
from eaimw.grade.grade import grade_relay, our_relay, relay_command
from eaimw.grade.steps import RELAY_STEPS, TITLES, Verdict
from eaimw.grade.targets import Targets

Addresses = Sequence[tuple[str, str]]

# The learner's relay without a mistake, behind the standard library's server: each request in a thread of its own.
SERVES = """
import argparse, json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from wrong.relays.learner import Learner

parser = argparse.ArgumentParser()
for name in ("fail-threshold", "max-inflight"):
    parser.add_argument(f"--{name}", type=int)
for name in ("reset-timeout", "timeout"):
    parser.add_argument(f"--{name}", type=float)
for name in ("breaker-log", "core-url", "claim-url", "listen"):
    parser.add_argument(f"--{name}")
options = parser.parse_args()
learner = Learner(options)

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        tx = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(learner.handle_tx(tx)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

host, _, port = options.listen.rpartition(":")
server = Server((host, int(port)), Handler)
print(f"listening on http://{host}:{server.server_port}", file=sys.stderr, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def targets() -> Iterator[Addresses]:
    """A pair of simulated targets for each step."""
    with closing(Targets(len(RELAY_STEPS))) as running:
        yield running.addresses


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's relay is found, and nothing is left in a folder of ours."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "tests"))))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def graded(
    folder: Path, text: str, targets: Addresses, steps: Sequence[int] = RELAY_STEPS, patience: float = 10.0
) -> list[Verdict]:
    command = relay_command(relay_file(folder, text))
    return list(grade_relay(command, steps, addresses=targets, patience=patience, listens=True))


def changed(before: str, after: str) -> str:
    assert before in SERVES
    return SERVES.replace(before, after)


def test_ours_passes_every_step() -> None:
    """All seven, as without --listen."""
    result = CliRunner().invoke(grade, ["--listen"])
    assert result.output.splitlines() == [f"step {step}: passed: {title}" for step, title in TITLES.items()]
    assert result.exit_code == 0


def test_a_learners_relay_that_serves_passes(tmp_path: Path, targets: Addresses) -> None:
    """The steps ask for nothing that the standard library's server could not do."""
    verdicts = graded(tmp_path, SERVES, targets)
    assert failed(verdicts) == (), "\n".join(map(str, verdicts))


def test_a_relay_that_serves_one_request_at_a_time_fails(tmp_path: Path, targets: Addresses) -> None:
    """Through JSON lines it would be right; over HTTP nothing comes at once, and CLAIM waits for CORE."""
    verdicts = graded(tmp_path, changed("class Server(ThreadingHTTPServer)", "class Server(HTTPServer)"), targets)
    assert failed(verdicts) == (4, 5), "\n".join(map(str, verdicts))
    full, alone = verdicts[1], verdicts[2]
    assert full.reason == "6 transactions came at once with --max-inflight 2, and 0 got E905 instead of 4"
    assert "each transaction needs a thread of its own" in full.hint
    assert alone.reason.startswith("CORE was slow, and CLAIM, which was healthy, was answered only after")
    assert alone.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('no')\n", "(exit status 1) and never said where it listens; its last words:"),
        ("import time\ntime.sleep(600)\n", "it did not say where it listens within 1 s; it said nothing"),
        (changed("file=sys.stderr", "file=sys.stdout"), "it did not say where it listens within"),
        (changed("        self.wfile.write(body)\n", "        sys.exit()\n"), "got no whole answer: "),
        (changed("    def do_POST(self):\n", "    def do_POST(self):\n        import os; os._exit(3)\n"), "status 3)"),
        (changed("do_POST", "do_PUT"), "POST /tx was answered with HTTP 501 and what is no reply: "),
        (changed("json.dumps(learner.handle_tx(tx))", "'[]'"), "HTTP 200 and what is no reply: []"),
        (changed("learner.handle_tx(tx)", "{'tx_id': 'T-1', 'code': '0000'}"), "was answered with the reply to T-1"),
        (changed("learner.handle_tx(tx)", "{**tx, 'code': 'E903'}"), "the first transaction for it got E903"),
        (changed("        tx = ", "        import time; time.sleep(600)\n        tx = "), "got no answer within 4 s"),
    ],
    ids=["crashes", "mute", "on stdout", "cut", "dies", "no POST", "no object", "wrong tx_id", "wrong code", "hangs"],
)  # fmt: skip
def test_what_is_no_relay_fails_in_a_sentence(tmp_path: Path, targets: Addresses, text: str, says: str) -> None:
    """Whatever a program does becomes a reason, on one line, with a hint, in bounded time."""
    started = time.monotonic()
    # What waits for something that never comes need not wait long; what is to answer must have time to start.
    patience = 0.5 if "did not say" in says else 3.0 if "got no answer" in says else 10.0
    (verdict,) = graded(tmp_path, text, targets, (7,), patience)
    assert says in verdict.reason
    assert "\n" not in verdict.reason
    assert verdict.hint
    assert time.monotonic() - started < 60  # what hangs, hangs for ten times as long


def test_a_relay_that_ignores_sigterm_fails(tmp_path: Path, targets: Addresses) -> None:
    """It is ended all the same."""
    text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES
    (verdict,) = graded(tmp_path, text, targets, (3,), 2.0)
    assert verdict.reason.startswith("all its replies were out and it had got SIGTERM, and 5 s later it was still")
    assert "stop the server" in verdict.hint


def test_a_grader_that_is_ended_leaves_no_relay_serving(tmp_path: Path) -> None:
    """SIGTERM in the midst of a step: the relay, which would serve for ever, is ended with it."""
    pids = tmp_path / "pids"
    slow = f"import os, time\nopen({str(pids)!r}, 'w').write(str(os.getpid()))\n" + changed(
        "        tx = ", "        time.sleep(600)\n        tx = "
    )
    command = [*COMMAND, "grade", "--listen", "--step", "3", "--relay", str(relay_file(tmp_path, slow))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as grader:
        try:
            eventually(lambda: pids.exists() and pids.read_text(), within=30)
            grader.send_signal(signal.SIGTERM)
            assert grader.wait(30) == 128 + signal.SIGTERM
        finally:
            grader.kill()
    assert not is_running(int(pids.read_text()))


def test_listen_without_a_relay_is_wrong_usage() -> None:
    """A breaker alone does not listen."""
    for arguments in (("--listen", "--breaker", str(ROOT / "breaker" / "breaker.py")), ("--listen", "--step", "1")):
        result = CliRunner().invoke(grade, arguments)
        assert result.exit_code == 2
        assert "--listen is for a relay" in result.stderr


def test_the_installed_relay_serves_too(monkeypatch: pytest.MonkeyPatch, targets: Addresses) -> None:
    """As an installed wheel runs it."""
    monkeypatch.setattr("eaimw.grade.grade.OUR_BREAKER", Path("nowhere"))
    assert failed(list(grade_relay(our_relay(), (3,), addresses=targets, listens=True))) == ()
