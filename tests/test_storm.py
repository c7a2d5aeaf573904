"""A storm of callers through the running hub: all that was read is counted, and its end loses nothing."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import requests
from relayed import ENDS_WITHIN, ok, peer, tx
from served import direct, eventually, get, target
from serving import Caller, Server, request, serving

CALLERS = 8
TURNS = 60


def metric(url: str, name: str, label: str) -> Counter[str]:
    """A metric's values, summed by one of its labels."""
    found: Counter[str] = Counter()
    for line in get(url + "/metrics").text.splitlines():
        match = re.fullmatch(rf'{name}{{.*{label}="([^"]*)".*}} (\S+)', line)
        if match is not None:
            found[match[1]] += int(float(match[2]))
    return found


def one_caller(server: Server, number: int) -> tuple[Counter[str], int]:
    """What a caller does at random: the codes that it was answered, and how many requests it sent whole and left."""
    chance = Random(number)
    codes: Counter[str] = Counter()
    left = 0
    with direct() as session:
        for turn in range(TURNS):
            body = {
                "tx_id": f"S-{number}-{turn}",
                "target": chance.choice(["CORE", "CORE", "CLAIM", "NONE"]),
                "op": chance.choice(["BALANCE", "WITHDRAW", "STATUS"]),
                "account": "A-1",
                "amount": 5_000,
                "policy": "P-1",
                "claim": "C-1",
            }
            kind = chance.randrange(6)
            if kind == 0:
                with Caller(server) as caller:  # half a request is none
                    caller.send(request(json.dumps(body).encode())[:-3])
            elif kind == 1:
                with Caller(server) as caller:
                    caller.send(request(json.dumps(body).encode()))
                    if chance.random() < 0.5:  # gone at once: the reset may overtake what was sent
                        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        left += 1
                    else:
                        caller.sock.shutdown(socket.SHUT_WR)
                        codes[json.loads(caller.answer()[2])["code"]] += 1
            elif kind == 2:
                codes[session.post(f"{server.url}/tx", data=b"nonsense", timeout=30).json()["code"]] += 1
            elif kind == 3:
                session.get(f"{server.url}/nowhere", timeout=30)  # without a body: no transaction
            else:
                codes[session.post(f"{server.url}/tx", json=body, timeout=30).json()["code"]] += 1
    return codes, left


def test_the_metrics_are_what_the_callers_counted() -> None:
    """Good, denied, bad, refused, unknown and failed ones, half requests, and callers that leave."""
    options = ("--admin", "127.0.0.1:0", "--max-inflight", "2", "--fail-threshold", "4", "--reset-timeout", "0.05")
    with (
        target("core") as core,
        target("claim") as claim,
        serving(*options, "--core-url", core.url, "--claim-url", claim.url) as server,
    ):
        core.ctl(mode="flaky", rate=0.5, delay_ms=5, seed=1)
        server.running.says("admin on ")
        admin = server.running.errors.split("admin on ", 1)[1].split()[0]
        with ThreadPoolExecutor(CALLERS) as pool:
            told = list(pool.map(lambda number: one_caller(server, number), range(CALLERS)))
        codes: Counter[str] = sum((codes for codes, _ in told), Counter())
        left = sum(left for _, left in told)
        eventually(lambda: sum(metric(admin, "eaimw_inflight", "target").values()) == 0)
        counted = metric(admin, "eaimw_transactions_total", "code")
        assert codes.total() <= counted.total() <= codes.total() + left
        assert all(counted[code] >= count for code, count in codes.items())
        assert {"0000", "B201", "E400", "E500", "E903", "E905"} <= codes.keys()
        attempts = metric(admin, "eaimw_attempts_total", "target")
        assert attempts == {"CORE": core.stats()["calls"], "CLAIM": claim.stats()["calls"]}
        assert server.stop() == 0
        assert server.counted() == counted.total()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_going_down_under_load_loses_no_reply(number: signal.Signals) -> None:
    """Callers that go on until nobody listens: each request that was taken has its one reply, E911 at the end."""
    with peer(lambda request: ok(request)._replace(after=0.02)) as core, serving(core=core, claim=core) as server:

        def call(caller: int) -> Counter[str]:
            codes: Counter[str] = Counter()
            with direct() as session:
                for turn in range(100_000):
                    try:
                        reply = session.post(f"{server.url}/tx", json=tx(caller * 100_000 + turn), timeout=30).json()
                    except requests.ConnectionError:  # nobody listens any more, or a connection at rest was ended
                        codes["gone"] += 1
                        if codes["gone"] > 3:
                            break
                        continue
                    codes[reply["code"]] += 1
            return codes

        with ThreadPoolExecutor(CALLERS) as pool:
            calls = [pool.submit(call, caller) for caller in range(CALLERS)]
            eventually(lambda: sum(core.received.values()) > 50)
            server.running.process.send_signal(number)
            assert server.running.wait(ENDS_WITHIN) == 0
            told: Counter[str] = sum((call.result() for call in calls), Counter())
        assert told.pop("gone") == 4 * CALLERS
        assert told.keys() <= {"0000", "E905", "E911"}
        assert told["0000"] > 50
        assert server.counted() == told.total()
