"""The learner's unprotected relay: it relays, and it shows the illness that the exercise is about."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from served import ROOT, Served, eventually, target

PROGRAM = ROOT / "fixtures" / "breaker" / "relay_base.py"


@pytest.fixture(scope="module")
def targets() -> Iterator[tuple[Served, Served]]:
    with target("core") as core, target("claim") as claim:
        yield core, claim


@pytest.fixture
def core(targets: tuple[Served, Served]) -> Served:
    """CORE as at its start, and CLAIM too."""
    for served in targets:
        served.renew()
    return targets[0]


def command(targets: tuple[Served, Served], *options: str) -> list[str]:
    core, claim = targets
    urls = ["--core-url", core.url, "--claim-url", claim.url]
    return [sys.executable, str(PROGRAM), *urls, *options]


def relay(targets: tuple[Served, Served], text: str, *options: str) -> list[dict[str, Any]]:
    """The replies to some lines of input, in the order in which they came."""
    done = subprocess.run(
        command(targets, *options), input=text, capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_relays_to_both_targets(targets: tuple[Served, Served], core: Served) -> None:
    """Each line gets one reply with tx_id, target, code and outcome; results are in `data`."""
    lines = (
        '{"tx_id": "T-1", "target": "CORE", "op": "BALANCE", "account": "A-1"}\n'
        '{"tx_id": "T-2", "target": "CLAIM", "op": "STATUS", "policy": "P-0", "claim": "C"}\n'
    )
    replies = {reply["tx_id"]: reply for reply in relay(targets, lines)}
    assert replies["T-1"]["data"]["balance"] == 1000
    del replies["T-1"]["data"], replies["T-2"]["data"]
    assert replies == {
        "T-1": {"tx_id": "T-1", "target": "CORE", "code": "0000", "outcome": "done"},
        "T-2": {"tx_id": "T-2", "target": "CLAIM", "code": "B210", "outcome": "done"},
    }


@pytest.mark.parametrize(
    ("mode", "code"),
    [("fail", "E500"), ("garbage", "E500"), ("drop", "E902"), ("hang", "E901"), ("deny", "B299")],
)
def test_what_a_target_does_has_a_code(targets: tuple[Served, Served], core: Served, mode: str, code: str) -> None:
    """Each way to fall ill has the code that the contract gives it, a denial is done, all else unknown."""
    core.ctl(mode=mode)
    (reply,) = relay(targets, '{"tx_id": "T-1", "target": "CORE"}\n', "--timeout", "0.3")
    assert (reply["tx_id"], reply["code"]) == ("T-1", code)
    assert reply["outcome"] == ("done" if mode == "deny" else "unknown")


def test_no_connection_is_e902() -> None:
    """Nothing listens any more: E902."""
    with target("core") as core:
        core.stop()
        (reply,) = relay((core, core), '{"tx_id": "T-1", "target": "CORE"}\n')
    assert reply["code"] == "E902"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("no JSON", "E400"),
        ("[1]", "E400"),
        ("7", "E400"),
        ('{"tx_id": "T-1"}', "E400"),
        ('{"tx_id": 5, "target": "CORE"}', "E400"),
        ('{"tx_id": "T-1", "target": ["CORE"]}', "E400"),
        ("[" * 100_000, "E400"),
        ('{"tx_id": "T-1", "target": "BANK"}', "E903"),
    ],
)
def test_a_line_that_goes_nowhere(targets: tuple[Served, Served], core: Served, line: str, code: str) -> None:
    """A malformed line and an unknown target are answered, and the next line is served."""
    replies = relay(targets, line + '\n{"tx_id": "T-9", "target": "CORE"}\n')
    assert sorted(reply["code"] for reply in replies) == ["0000", code]
    assert {reply["outcome"] for reply in replies if reply["code"] == code} == {"not_sent"}


def test_it_reads_a_file_and_takes_the_options_of_the_exercise(
    targets: tuple[Served, Served], core: Served, tmp_path: Path
) -> None:
    """INPUT may be a file; the options that the learner will fill with life are accepted."""
    transactions = tmp_path / "transactions.jsonl"
    transactions.write_text('{"tx_id": "T-1", "target": "CORE"}\n')
    log = str(tmp_path / "breaker.log")
    options = ["--fail-threshold", "2", "--reset-timeout", "1.5", "--max-inflight", "3", "--breaker-log", log]
    (reply,) = relay(targets, "", *options, str(transactions))
    assert reply["code"] == "0000"


@contextmanager
def running(targets: tuple[Served, Served], lines: str) -> Iterator[IO[str]]:
    """The output of a relay that waits long for its targets and whose standard input stays open."""
    with subprocess.Popen(
        command(targets, "--timeout", "60"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(lines)
            process.stdin.flush()
            yield process.stdout
        finally:
            process.kill()


def test_calls_pile_up_on_a_target_that_hangs(targets: tuple[Served, Served], core: Served) -> None:
    """Thirty lines for a hanging CORE are thirty calls in flight: the illness that max-inflight is the cure of."""
    core.ctl(mode="hang")
    lines = "".join(f'{{"tx_id": "T-{n}", "target": "CORE"}}\n' for n in range(30))
    with running(targets, lines):
        eventually(lambda: core.stats()["inflight"] == 30, within=10)


def test_a_reply_is_written_as_soon_as_it_is_known(targets: tuple[Served, Served], core: Served) -> None:
    """CLAIM's reply comes while CORE still hangs and standard input is still open."""
    core.ctl(mode="hang")
    lines = '{"tx_id": "T-1", "target": "CORE"}\n{"tx_id": "T-2", "target": "CLAIM"}\n'
    with running(targets, lines) as output:
        assert json.loads(output.readline())["tx_id"] == "T-2"
        eventually(lambda: core.stats()["inflight"] == 1)
