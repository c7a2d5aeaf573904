"""The README: what it shows is what the code does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from relayed import peer, relay
from served import Served, target

from eaimw import config
from eaimw.hub_file import HUB_KEYS, KEYS, OP_KEYS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SH = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
LINES = [line for block in SH for line in block.splitlines()]


def here(line: str, core: Served, claim: Served, folder: Path) -> str:
    """The README's line with this Python, free ports and a log of its own."""
    line = line.replace("localhost:9201", core.base.removeprefix("http://"))
    line = line.replace(
        "python breaker/relay.py",
        f"{sys.executable} breaker/relay.py --core-url {core.url} --claim-url {claim.url} "
        f"--breaker-log {folder / 'breaker.log'}",
    )
    return line.replace("breaker/breaker.log", str(folder / "breaker.log"))


def run(line: str, limit: float = 60) -> str:
    """What the line prints; it must end well."""
    done = subprocess.run(["bash", "-ec", line], cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def test_the_parts_from_the_code_are_fresh() -> None:
    """Diagram, tables and help are what scripts/readme.py would write now."""
    subprocess.run([sys.executable, "scripts/readme.py", "--check"], cwd=ROOT, check=True, timeout=60)


def test_every_setting_of_a_target_is_explained() -> None:
    """Each option of the relay stands in its help, each setting in its record's docstring."""
    for record in (config.TargetSettings, config.BreakerSettings, config.OpSettings, config.TlsSettings):
        for name in record.__dataclass_fields__:
            assert name == "breaker" or f"{name}:" in (record.__doc__ or ""), name


def test_the_commands_by_hand_do_what_is_said(tmp_path: Path) -> None:
    """The story of `By hand`: CORE fails, its circuit opens, it recovers and answers."""
    start = [line for line in LINES if line.startswith("python fixtures/")]
    assert start == ["python fixtures/core.py &", "python fixtures/claim.py &"]
    assert [line.split()[0] for line in LINES if line.startswith("scripts/")] == [
        "scripts/demo", "scripts/test", "scripts/prove", "scripts/prove", "scripts/bench",
    ]  # fmt: skip
    after = LINES[LINES.index(start[-1]) + 1 :]
    story = after[: next(number for number, line in enumerate(after) if "bin/eaimw" in line)]
    assert len(story) == 6
    with target("core") as core, target("claim") as claim:
        fail, relay, log, recover, one, stats = (here(line, core, claim, tmp_path) for line in story)
        assert json.loads(run(fail))["mode"] == "fail"
        replies = [json.loads(line) for line in run(relay).splitlines()]
        assert len(replies) == len((ROOT / "examples/transactions.jsonl").read_text(encoding="utf-8").splitlines())
        assert {reply["code"] for reply in replies if reply["target"] == "CORE"} == {"E500", "E904"}
        assert {reply["code"] for reply in replies if reply["target"] == "CLAIM"} == {"0000", "B210"}
        assert run(log).strip().endswith("|CORE|CLOSED->OPEN")
        assert json.loads(run(recover))["mode"] == "normal"
        reply = json.loads(run(one))
        assert (reply["code"], reply["data"]["balance"]) == ("0000", 1_000_000)
        assert json.loads(run(stats))["executed"] == 1


def test_the_commands_of_the_hub_file_do_what_is_said(tmp_path: Path) -> None:
    """The example is good, what it puts in force is good too, and the relay runs with it."""
    check, config, relay = (
        line.replace(".venv/bin/", f"{sys.prefix}/bin/") for line in LINES if "examples/hub.toml" in line
    )
    assert run(check) == "examples/hub.toml: good: CORE, CLAIM; 2 routes\n"
    (tmp_path / "again.toml").write_text(run(config), encoding="utf-8")
    assert run(f"{sys.prefix}/bin/eaimw check {tmp_path / 'again.toml'}").endswith(": good: CORE, CLAIM; 2 routes\n")
    with target("core") as core, target("claim") as claim:
        text = (ROOT / "examples/hub.toml").read_text(encoding="utf-8")
        text = text.replace("http://127.0.0.1:9201/tx", core.url).replace("http://127.0.0.1:9202/tx", claim.url)
        (tmp_path / "hub.toml").write_text(text, encoding="utf-8")
        replies = [
            json.loads(line)
            for line in run(relay.replace("examples/hub.toml", str(tmp_path / "hub.toml"))).splitlines()
        ]
    assert len(replies) == 18
    assert {reply["outcome"] for reply in replies} == {"done"}
    assert (tmp_path / "breaker.log").read_text(encoding="utf-8") == ""


def test_every_setting_of_the_file_is_in_the_table_and_in_the_example() -> None:
    """A setting that is not explained to its readers is not there for them."""
    example = (ROOT / "examples/hub.toml").read_text(encoding="utf-8")
    for key in KEYS:
        assert f"| `{key}` |" in README, key
        assert key == "ca_file" or re.search(
            rf"^#? *{key.removeprefix('breaker.')} = .*#|^url = ", example, re.MULTILINE
        ), key
    for key in HUB_KEYS:
        assert f"| `[hub] {key}` |" in README, key
        assert re.search(rf"^#? *{key} = .*#", example, re.MULTILINE), key
    for key in OP_KEYS:
        assert f"| `[ops.OP] {key}` |" in README, key
        assert re.search(rf"^{key} = .*#", example, re.MULTILINE), key


def test_the_grader_commands_do_what_is_said() -> None:
    """All of ours passes, over HTTP too; the breaker alone passes; the relay without protection fails step 3."""
    grades = [line.replace(".venv/bin/", f"{sys.prefix}/bin/") for line in LINES if "eaimw grade" in line]
    assert len(grades) == 4
    assert run(grades[0]).count("passed") == 7
    assert run(grades[1]).count("passed") == 2
    assert run(grades[2]).count("passed") == 7
    done = subprocess.run(["bash", "-ec", grades[3]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "step 3: failed" in done.stdout


def test_the_commands_for_a_hub_that_runs_do_what_is_said() -> None:
    """`send` brings a reply for each line, `targets` a table of what they left."""
    send, targets = (
        line.replace(".venv/bin/", f"{sys.prefix}/bin/") for line in LINES if re.search(r"eaimw (send|targets) ", line)
    )
    with (
        target("core") as core,
        target("claim") as claim,
        relay("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", core=core.url, claim=claim.url) as hub,
    ):
        hub.says("admin on ")
        listen, admin = (line.rpartition("http://")[2] for line in hub.errors.splitlines())
        replies = [json.loads(line) for line in run(send.replace("127.0.0.1:8080", listen)).splitlines()]
        table = run(targets.replace("127.0.0.1:9300", admin)).splitlines()
    assert len(replies) == len((ROOT / "examples/transactions.jsonl").read_text(encoding="utf-8").splitlines())
    assert {reply["outcome"] for reply in replies} == {"done"}
    assert [line.split()[:2] for line in table[1::3]] == [["CORE", "CLOSED"], ["CLAIM", "CLOSED"]]


@pytest.mark.parametrize("line", [line for line in LINES if re.search(r"eaimw sim (?!run|replay)", line)])
def test_the_studies_run(line: str) -> None:
    """Each prints a table, and where its figures come from."""
    assert re.search(r"^(simulated|modelled): ", run(line.replace(".venv/bin/", f"{sys.prefix}/bin/")), re.MULTILINE)


@pytest.mark.skipif(shutil.which("jq") is None, reason="the recipe is jq's, and it is not on this machine")
def test_what_was_refused_is_sent_again_as_is_said(tmp_path: Path) -> None:
    """Those lines alone, byte for byte, whatever else stands in the input, and not before they may come again."""
    (recipe,) = re.findall(r"```text\n([^`]*select\(.retryable\)[^`]*)```", README)
    lines = [b'{"tx_id": "T-%d",  "target":"CORE", "amount": 1.00}' % number for number in range(12)]
    (tmp_path / "day.jsonl").write_bytes(b"\n".join([b"no JSON", b"[1]", b"7", *lines, b""]))
    with peer() as well, relay("--listen", "127.0.0.1:0", core=well.url) as hub:
        hub.says("listening on ")
        url = hub.errors.split()[2]
        first = recipe.replace("http://127.0.0.1:8080", url).replace(".venv/bin/", f"{sys.prefix}/bin/")
        send, rest = first.split("\n", 1)
        subprocess.run(["bash", "-ec", send], cwd=tmp_path, check=True, timeout=60, capture_output=True)
        replies = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_bytes().splitlines()]
        assert len(replies) == 15
        for reply in replies:
            if reply["tx_id"] in ("T-1", "T-10"):  # as if their circuit had been open
                reply |= {"code": "E904", "retryable": True, "retry_after_ms": 300}
        (tmp_path / "replies.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        started = time.monotonic()
        subprocess.run(["bash", "-ec", rest], cwd=tmp_path, check=True, timeout=60, capture_output=True)
        assert time.monotonic() - started >= 0.3
        assert well.received == {f"T-{number}": 2 if number in (1, 10) else 1 for number in range(12)}
    assert (tmp_path / "again.jsonl").read_bytes().splitlines() == [lines[1], lines[10]]
    assert (tmp_path / "replies-again.jsonl").read_bytes().count(b'"0000"') >= 2


@pytest.mark.parametrize("snippet", [s for s in PYTHON if "9201" in s], ids=lambda s: s.split("\n")[0])
def test_the_python_snippets_run(snippet: str) -> None:
    """As they stand, with a free port."""
    with target("core") as core:
        code = snippet.replace("http://127.0.0.1:9201/tx", core.url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "0000" in done.stdout


def test_the_breaker_snippet_runs() -> None:
    """Beside breaker.py, with a call that fails, one that is cut, and one that is answered."""
    (snippet,) = (s for s in PYTHON if "permit.ignore()" in s)
    program = f"""
class TargetError(Exception): pass
outcomes = iter([TargetError(), KeyboardInterrupt(), None])
def call_the_target():
    outcome = next(outcomes)
    if outcome: raise outcome
for _ in range(3):
    try:
        exec({snippet!r})
    except KeyboardInterrupt:
        print("cut")
print(breaker.state)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "breaker", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["cut", "CLOSED"]


def test_the_demo_tells_its_story() -> None:
    """E905 while CORE is slow, E904 and few calls while it fails, one probe closes; CLAIM's rows are 0000 alone."""
    demo = subprocess.Popen(
        [sys.executable, "scripts/demo.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, _ = demo.communicate(timeout=60)
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    assert demo.returncode == 0
    rows = {
        (match[1].strip(), match[2]): match[3]
        for match in re.finditer(r"^(.{11}) (CORE|CLAIM) +\d+ +[\d.]+ +[\d.]+ +(.*)$", printed, re.MULTILINE)
    }
    assert len(rows) == 8
    assert "E905" in rows["CORE slow", "CORE"]
    assert "E904" in rows["CORE fails", "CORE"]
    assert "E500" in rows["CORE fails", "CORE"]
    assert "0000" in rows["CORE well", "CORE"]
    assert all(re.fullmatch(r"0000 \d+", codes) for (_, name), codes in rows.items() if name == "CLAIM")
    changes = re.findall(r"\|(CORE|CLAIM)\|(\w+->\w+)$", printed, re.MULTILINE)
    assert changes[0] == ("CORE", "CLOSED->OPEN")
    assert changes[-1] == ("CORE", "HALF_OPEN->CLOSED")
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)  # nothing of its session is left


def test_a_demo_that_is_ended_leaves_nothing_running() -> None:
    """SIGTERM in its midst: its targets and its relay are gone when it is."""
    command = [sys.executable, "-u", "scripts/demo.py"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        try:
            assert demo.stdout is not None
            assert any(line.startswith("healthy") for line in demo.stdout)
            demo.terminate()
            assert demo.wait(30) == 130
        finally:
            demo.kill()
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)
