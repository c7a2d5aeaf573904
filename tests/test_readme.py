"""The README: what it shows is what the code does."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import command
from relayed import Running, peer, relay
from served import Served, target

from eaimw.config import OpSettings, TargetSettings, TlsSettings
from eaimw.hub_file import BUILT_IN, HUB_KEYS, KEYS, OP_KEYS, read_hub_file
from eaimw.policy import BreakerSettings, RetrySettings
from eaimw.sense import findings
from eaimw.sim import scenario

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SECTIONS = dict(re.findall(r"^##+ (.+?)\n(.*?)(?=^##+ |\Z)", README, re.MULTILINE | re.DOTALL))


def blocks(section: str, language: str = "sh") -> list[str]:
    """The blocks of one section, without those of the sections below it."""
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)


def lines(section: str) -> list[str]:
    """The commands of one section, as this environment has them."""
    commands = "".join(blocks(section)).splitlines()
    return [line.replace(".venv/bin/", f"{sys.prefix}/bin/") for line in commands]


def here(line: str, core: Served, claim: Served, folder: Path) -> str:
    """The README's line with this Python, free ports and a log of its own."""
    line = line.replace("localhost:9201", core.base.removeprefix("http://"))
    line = line.replace(
        "python3 breaker/relay.py",
        f"{sys.executable} breaker/relay.py --core-url {core.url} --claim-url {claim.url} "
        f"--breaker-log {folder / 'breaker.log'}",
    )
    return line.replace("breaker/breaker.log", str(folder / "breaker.log"))


def example(core: Served, claim: Served) -> str:
    """The example of a hub.toml, with those targets."""
    text = (ROOT / "examples/hub.toml").read_text(encoding="utf-8")
    return text.replace("http://127.0.0.1:9201/tx", core.url).replace("http://127.0.0.1:9202/tx", claim.url)


def run(line: str, limit: float = 60, cwd: Path = ROOT) -> str:
    """What the line prints; it must end well."""
    done = subprocess.run(["bash", "-ec", line], cwd=cwd, capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def test_the_parts_from_the_code_are_fresh() -> None:
    """Diagram, tables and help are what scripts/readme.py would write now."""
    subprocess.run([sys.executable, "scripts/readme.py", "--check"], cwd=ROOT, check=True, timeout=60)


def test_every_command_is_in_a_section_that_is_run() -> None:
    """Where a section gets its first command, it gets a test here as well."""
    assert [name for name in SECTIONS if blocks(name)] == [
        "Two commands", "By hand", "hub.toml", "As a server", "TLS", "Sending", "Watching", "At 3 a.m.",
        "Grade your own", "Seeing it before it happens", "How fast", "Logs",
    ]  # fmt: skip
    assert lines("Two commands") == ["scripts/demo", "scripts/test"]  # the demo below, and what runs this
    assert lines("How fast") == ["scripts/bench"]  # where nginx, HAProxy and wrk are
    assert [line.split()[0] for line in lines("Seeing it before it happens") if "eaimw" not in line] == [
        "scripts/prove", "scripts/prove",
    ]  # fmt: skip


def test_every_block_and_every_heading_stands_by_itself() -> None:
    """A fence that is not closed would make text of what follows, and a heading is one only after a blank line."""
    fences = re.findall(r"^```(.*)$", README, re.MULTILINE)
    assert all(fences[::2])
    assert not any(fences[1::2])
    assert not re.search(r"[^\n]\n##+ ", README)


def test_the_links_lead_to_sections() -> None:
    """Each `(#...)` is a heading, by GitHub's rule: lower case, no punctuation, blanks are hyphens."""
    headings = re.findall(r"^##+ (.+)$", README, re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#(.*?)\)", README)) <= set(anchors)


def test_no_example_uses_a_tx_id_for_two_transactions() -> None:
    """A simulated target answers a `tx_id` that it has executed from memory."""
    shown = re.findall(r'\{"tx_id": ?"(T\d+)", ?((?:"target"|"op"): ?"\w+", ?"(?:op|account)".*?)\}', README)
    assert len(shown) >= 6
    assert len({tx_id for tx_id, _ in shown}) == len(shown)


def test_every_setting_of_a_target_is_explained() -> None:
    """Each option of the relay stands in its help, each setting in its record's docstring."""
    for record in (TargetSettings, BreakerSettings, RetrySettings, OpSettings, TlsSettings):
        for name in record.__dataclass_fields__:
            assert re.search(rf"\b{name}(, \w+)*: ", record.__doc__ or ""), name


def test_the_commands_by_hand_do_what_is_said(tmp_path: Path) -> None:
    """The story of `By hand`: CORE fails, its circuit opens, it recovers and answers."""
    *start, fail, relay, log, recover, one, stats, reset = lines("By hand")
    assert start == ["python3 fixtures/core.py &", "python3 fixtures/claim.py &"]
    with target("core") as core, target("claim") as claim:
        fail, relay, log, recover, one, stats, reset = (
            here(line, core, claim, tmp_path) for line in (fail, relay, log, recover, one, stats, reset)
        )
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
        assert json.loads(run(reset))["executed"] == 0


def test_the_commands_of_the_hub_file_do_what_is_said(tmp_path: Path) -> None:
    """The example is good, what it puts in force is good too, and the relay runs with it."""
    check, config, relay = lines("hub.toml")
    assert run(check) == "examples/hub.toml: good: CORE, CLAIM; 2 routes\n"
    (tmp_path / "again.toml").write_text(run(config), encoding="utf-8")
    assert run(f"{sys.prefix}/bin/eaimw check {tmp_path / 'again.toml'}").endswith(": good: CORE, CLAIM; 2 routes\n")
    with target("core") as core, target("claim") as claim:
        (tmp_path / "hub.toml").write_text(example(core, claim), encoding="utf-8")
        replies = [
            json.loads(line)
            for line in run(relay.replace("examples/hub.toml", str(tmp_path / "hub.toml"))).splitlines()
        ]
    assert len(replies) == 18
    assert {reply["outcome"] for reply in replies} == {"done"}
    assert (tmp_path / "breaker.log").read_text(encoding="utf-8") == ""


def test_the_finding_that_is_shown_is_what_check_says(tmp_path: Path) -> None:
    """Of the file above it, with one line more."""
    (text,), (finding,) = blocks("hub.toml", "toml"), blocks("hub.toml", "text")
    (tmp_path / "hub.toml").write_text(text.replace("timeout = 3.0 ", "expected_p99 = 0.5\ntimeout = 3.0 "))
    done = subprocess.run(
        [f"{sys.prefix}/bin/eaimw", "check", "hub.toml"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stderr == finding
    assert done.stdout == "hub.toml: good: CORE, CLAIM; 1 route; 1 warning\n"


def test_the_example_of_policies_makes_sense(tmp_path: Path) -> None:
    """It is good, and `eaimw check` finds nothing in it."""
    (text,) = blocks("Policies", "toml")
    (tmp_path / "hub.toml").write_text(text)
    done = run(f"{sys.prefix}/bin/eaimw check --strict {tmp_path / 'hub.toml'}")
    assert done == f"{tmp_path / 'hub.toml'}: good: CORE; 0 routes\n"


def test_every_setting_of_the_file_is_in_the_table_and_in_the_example(tmp_path: Path) -> None:
    """A setting that is not explained to its readers is not there for them."""
    example = (ROOT / "examples/hub.toml").read_text(encoding="utf-8")
    (tmp_path / "all.toml").write_text(re.sub(r"^# (?=\[|\w+ = )", "", example, flags=re.MULTILINE), encoding="utf-8")
    file = read_hub_file(tmp_path / "all.toml")
    for key in KEYS:
        assert f"| `{key}` |" in README, key
        assert any(origins[key] != BUILT_IN for origins in file.origins.values()), key
        assert key == "url" or re.search(rf"^(# )?{key.rpartition('.')[2]} = .*#", example, re.MULTILINE), key
    for key in HUB_KEYS:
        assert f"| `[hub] {key}` |" in README, key
        assert re.search(rf"^#? *{key} = .*#", example, re.MULTILINE), key
    for key in OP_KEYS:
        assert f"| `[ops.OP] {key}` |" in README, key
        assert re.search(rf"^{key} = .*#", example, re.MULTILINE), key
    assert findings(file.settings, file.origins) == []


def test_the_grader_commands_do_what_is_said() -> None:
    """All of ours passes, over HTTP too; the breaker alone passes; the relay without protection fails step 3."""
    grades = lines("Grade your own")
    assert len(grades) == 4
    assert run(grades[0]).count("passed") == 7
    assert run(grades[1]).count("passed") == 2
    assert run(grades[2]).count("passed") == 7
    done = subprocess.run(["bash", "-ec", grades[3]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "step 3: failed" in done.stdout


def test_the_code_for_a_relay_over_http_is_all_it_needs(tmp_path: Path) -> None:
    """With it the relay without protection is graded as through JSON lines, and fails for what it lacks alone."""
    (snippet,) = blocks("A relay of yours over HTTP", "python")
    text = (ROOT / "fixtures/breaker/relay_base.py").read_text(encoding="utf-8")
    for before, after in (
        ("def main(", f"{snippet}\n\ndef main("),
        ("    option = parser.add_argument\n", '    option = parser.add_argument\n    option("--listen")\n'),
        (
            "    with open(0 if",
            "    if options.listen:\n        return serve(relay, options.listen)\n    with open(0 if",
        ),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tmp_path / "relay.py").write_text(text, encoding="utf-8")
    words = [f"{sys.prefix}/bin/eaimw", "grade", "--relay", str(tmp_path / "relay.py"), "--step", "3", "--listen"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "the next transactions got E500 instead of E904" in done.stdout


@contextmanager
def hub_of(folder: Path, text: str, *targets: Served) -> Iterator[tuple[Running, dict[str, str]]]:
    """`eaimw serve` with this hub.toml on free ports, and for each port of the README's the one that it has."""
    ports = {"127.0.0.1:9201": "", "127.0.0.1:9202": ""}
    for place, served in zip(ports, targets, strict=False):
        ports[place] = served.base.removeprefix("http://")
        text = text.replace(place, ports[place])
    own = re.findall(r'listen = "(.*?)"', text)
    for place in own:
        text = text.replace(place, "127.0.0.1:0")
    (folder / "hub.toml").write_text(text, encoding="utf-8")
    with command("serve", str(folder / "hub.toml"), cwd=folder) as hub:
        hub.says("admin on " if len(own) > 1 else "listening on ")
        ports |= dict(zip(own, re.findall(r" on https?://(\S+)", hub.errors), strict=True))
        yield hub, {f"{host}:{place.rpartition(':')[2]}": f"{host}:{now.rpartition(':')[2]}"
                    for place, now in ports.items() if now for host in ("127.0.0.1", "localhost")}  # fmt: skip


def there(line: str, ports: dict[str, str]) -> str:
    """The README's line with those ports."""
    for place, now in ports.items():
        line = line.replace(place, now)
    return line


def test_the_hub_file_is_served_and_watched_as_is_said(tmp_path: Path) -> None:
    """A transaction by curl, a file by `send`, and `targets` has a table of what they left."""
    (text,) = blocks("hub.toml", "toml")
    serve, curl = lines("As a server")
    assert serve == f"{sys.prefix}/bin/eaimw serve hub.toml &"
    send, targets = lines("Sending")[0], lines("Watching")[0]
    with target("core") as core, target("claim") as claim, hub_of(tmp_path, text, core, claim) as (_, ports):
        assert json.loads(run(there(curl, ports)))["code"] == "0000"
        replies = [json.loads(line) for line in run(there(send, ports)).splitlines()]
        table = run(there(targets, ports)).splitlines()
    assert len(replies) == len((ROOT / "examples/transactions.jsonl").read_text(encoding="utf-8").splitlines())
    assert {reply["outcome"] for reply in replies} == {"done"}
    assert [line.split()[:2] for line in table[1::3]] == [["CORE", "CLOSED"], ["CLAIM", "CLOSED"]]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificates are openssl's, and it is not here")
def test_the_tls_example_does_what_is_said(tmp_path: Path) -> None:
    """Its certificates and its hub.toml are good; who has one is served, and who has none is not."""
    make, use = blocks("TLS")
    (text,) = blocks("TLS", "toml")
    run(make, cwd=tmp_path)
    folder = tmp_path / "tls"
    run("openssl verify -x509_strict -CAfile ca.pem hub.pem caller.pem", cwd=folder)
    (folder / "hub.toml").write_text(text, encoding="utf-8")
    check, serve, curl = use.replace(".venv/bin/", f"{sys.prefix}/bin/").splitlines()
    assert run(check, cwd=tmp_path) == "tls/hub.toml: good: CORE; 0 routes\n"
    assert serve == f"{sys.prefix}/bin/eaimw serve tls/hub.toml &"
    (send,) = (line for line in lines("Sending") if "SSL_CERT_FILE" in line)
    send = send.replace("examples/transactions.jsonl", str(ROOT / "examples/transactions.jsonl"))
    with target("core") as core, hub_of(folder, text, core) as (_, ports):
        assert json.loads(run(there(curl, ports), cwd=tmp_path))["code"] == "0000"
        codes = Counter(json.loads(line)["code"] for line in run(there(send, ports), cwd=tmp_path).splitlines())
        without = re.sub(r"--cert \S+ --key \S+", "", there(curl, ports))
        refused = subprocess.run(["bash", "-ec", without], cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert refused.returncode != 0
        assert refused.stdout == b""
    assert codes == {"0000": 10, "B201": 1, "B202": 1, "E903": 6}  # this hub has no CLAIM


@pytest.mark.skipif(shutil.which("jq") is None, reason="the recipes are jq's, and it is not on this machine")
def test_the_recipes_of_the_night_do_what_is_said(tmp_path: Path) -> None:
    """CORE took a transaction and never answered: the log names it, CORE says that it happened, and who has no line."""
    (text,) = blocks("hub.toml", "toml")
    targets, changes, unknown, ask, compare = lines("At 3 a.m.")
    (each_minute,) = lines("Logs")
    tx = '{"tx_id":"%s","target":"CORE","op":"DEPOSIT","account":"A-1","amount":1}'
    (tmp_path / "day.jsonl").write_text("".join(tx % name + "\n" for name in ("T1", "T2", "T3", "T4", "T5", "T6")))
    with target("core") as core, target("claim") as claim, hub_of(tmp_path, text, core, claim) as (hub, ports):
        core.ctl(mode="drop")
        for name in ("T4", "T1", "T2", "T3"):  # the third failure opens the circuit
            run(f"curl -s http://{ports['127.0.0.1:8080']}/tx -d '{tx % name}'")
        table = run(there(targets, ports)).splitlines()
        assert table[1].split()[:2] == ["CORE", "OPEN"]
        assert "3 consecutive failures, the last E902" in table[2]
        core.ctl(mode="normal")
        answer = json.loads(run(there(ask, ports)))
        assert (answer["received"], answer["executed"]) == (True, True)
        hub.process.terminate()
        assert hub.wait() == 0
    assert run(changes, cwd=tmp_path).strip().endswith("|CORE|CLOSED->OPEN")
    assert run(unknown, cwd=tmp_path).splitlines() == ["CORE\tT4", "CORE\tT1", "CORE\tT2"]
    assert run(compare, cwd=tmp_path).split() == ["T5", "T6"]
    assert re.fullmatch(r" *1 \d{4}-\d\d-\d\dT\d\d:\d\d\n", run(each_minute, cwd=tmp_path))


@pytest.mark.parametrize(
    "line", [line for line in lines("Seeing it before it happens") if re.search(r"eaimw sim (?!replay)", line)]
)
def test_the_studies_and_scenarios_run(line: str) -> None:
    """Each prints a table, and where its figures come from; what must hold does."""
    assert re.search(r"^(simulated|modelled): ", run(line), re.MULTILINE)


def test_a_record_is_made_and_replayed_as_is_said(tmp_path: Path) -> None:
    """What went through the relay goes once more through a hub with the settings of the example."""
    record, replay = (line for line in lines("Seeing it before it happens") if "record.jsonl" in line)
    with target("core") as core, target("claim") as claim:
        (tmp_path / "hub.toml").write_text(example(core, claim), encoding="utf-8")
        record = record.replace("examples/hub.toml", str(tmp_path / "hub.toml"))
        run(record.replace("record.jsonl", str(tmp_path / "record.jsonl")))
    table = run(replay.replace("record.jsonl", str(tmp_path / "record.jsonl"))).splitlines()
    assert [line.split()[:2] for line in table[1:3]] == [["CORE", "12"], ["CLAIM", "6"]]


@pytest.mark.skipif(shutil.which("jq") is None, reason="the recipe is jq's, and it is not on this machine")
def test_what_was_refused_is_sent_again_as_is_said(tmp_path: Path) -> None:
    """Those lines alone, byte for byte, whatever else stands in the input, and not before they may come again."""
    (recipe,) = (block for block in blocks("Sending") if "retryable" in block)
    good = [b'{"tx_id": "T-%d",  "target":"CORE", "amount": 1.00}' % number for number in range(12)]
    (tmp_path / "day.jsonl").write_bytes(b"\n".join([b"no JSON", b"[1]", b"7", *good, b""]))
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
    assert (tmp_path / "again.jsonl").read_bytes().splitlines() == [good[1], good[10]]
    assert (tmp_path / "replies-again.jsonl").read_bytes().count(b'"0000"') >= 2


def test_every_key_of_a_scenario_is_in_the_table() -> None:
    """One that is not explained to its readers is not there for them."""
    section = README[README.index("\n### Scenarios\n") : README.index("\n### The studies\n")]
    keys = {*scenario.KEYS, *scenario.LOAD_KEYS, *scenario.TARGET_KEYS, *scenario.WAY_KEYS, *scenario.LINK_KEYS}
    for name in (*(keys - {"loads", "targets"}), *scenario.ARRIVALS, *itertools.chain(*scenario.ARRIVALS.values())):
        assert f"`{name}`" in section, name


@pytest.mark.parametrize("snippet", [s for s in PYTHON if "9201" in s], ids=lambda s: s.split("\n")[0])
def test_the_python_snippets_run(snippet: str, tmp_path: Path) -> None:
    """As they stand, with a free port."""
    with target("core") as core:
        code = snippet.replace("http://127.0.0.1:9201/tx", core.url)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
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


def test_the_breaker_with_a_rule_does_as_its_comments_say() -> None:
    """Five slow calls open it and say why; three probes close it; waits of 10, 20, 40, 60, 60 s if they fail."""
    (first,) = (s for s in PYTHON if "permit.ignore()" in s)
    (snippet,) = (s for s in PYTHON if "class Slow" in s)
    program = f"""
{first.partition("permit =")[0]}
{snippet}
now, told = 0.0, []
breaker.clock, breaker.on_change = lambda: now, told.append
for seconds in (2.5, 1, 3, 3, 3, 3, 3):
    assert breaker.state == "CLOSED"
    breaker.acquire().success(seconds)
print(told[0].why)
for wait in (10, 20, 40, 60, 60):
    assert breaker.wait() == wait, (breaker.wait(), wait)
    now += wait
    breaker.acquire().failure(0.1)
now += 60
for permit in [breaker.acquire() for _ in range(3)]:
    assert breaker.state == "HALF_OPEN" and breaker.acquire() is None
    permit.success(0.1)
assert breaker.state == "CLOSED"
breaker.trip("9 calls hang")
print(told[-1].why)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "breaker", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["5 calls in a row took longer than 2 s", "9 calls hang"]


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
