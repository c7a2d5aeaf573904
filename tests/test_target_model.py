"""The simulated target as a machine: modes, memory, books, settings. No sockets, no clock."""

import json
from random import Random
from typing import Any

import pytest

from eaimw.sim.bank import Claim, Core
from eaimw.sim.modes import MODES
from eaimw.sim.target import ANSWER, CLOSE, HANG, Call, Known, Plan, Refused, Target


class Caller:
    """Calls a target and takes every answer at once, whatever its delay; a new tx_id each time if none is given."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._sent = 0

    def call(self, **tx: object) -> Call:
        self._sent += 1
        return self.target.receive(json.dumps({"tx_id": f"T-{self._sent}", **tx}).encode())

    def plan(self, **tx: object) -> Plan:
        """What the caller shall see; the call is ended as its plan says."""
        call = self.call(**tx)
        if call.plan.ending == ANSWER:
            self.target.answered(call)
        self.target.left(call)
        return call.plan

    def says(self, **tx: object) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.plan(**tx).body)
        return answer

    def code(self, **tx: object) -> str:
        return str(self.says(**tx)["code"])

    def balance(self, account: str = "A-1") -> int:
        return int(self.says(op="BALANCE", account=account)["balance"])


@pytest.fixture
def core() -> Caller:
    return Caller(Target(Core, Random(1)))


@pytest.fixture
def claim() -> Caller:
    return Caller(Target(Claim, Random(1)))


DEPOSIT: dict[str, object] = {"op": "DEPOSIT", "account": "A-1", "amount": 10}


# The modes


@pytest.mark.parametrize(
    ("mode", "ending", "status", "code", "executed"),
    [
        ("normal", ANSWER, 200, "0000", 1),
        ("fail", ANSWER, 500, "E500", 0),
        ("slow", ANSWER, 200, "0000", 1),
        ("deny", ANSWER, 200, "B299", 0),
        ("hang", HANG, 200, "-", 0),
        ("drop", CLOSE, 200, "-", 1),
        ("garbage", ANSWER, 200, "-", 1),
        ("drip", ANSWER, 200, "0000", 1),
    ],
)
def test_each_mode_answers_and_executes_as_its_row_says(
    core: Caller, mode: str, ending: str, status: int, code: str, executed: int
) -> None:
    """A mode decides how the call ends, with which status and code, and whether the money has moved."""
    core.target.control({"mode": mode})
    plan = core.plan(tx_id="X", **DEPOSIT)
    assert (plan.ending, plan.status, plan.code) == (ending, status, code)
    known = {"received": 1, "executed": executed, "code": None if code == "-" else code}
    assert core.target.stats_of("X") == known
    assert core.target.stats()["executed"] == executed
    core.target.control({"mode": "normal"})
    assert core.balance() == 1000 + 10 * executed


@pytest.mark.parametrize("mode", [mode for mode in MODES if "before" in MODES[mode].values()])
def test_execute_never_gives_the_same_answer_without_the_effect(core: Caller, mode: str) -> None:
    """With `execute` never the caller sees what it would have seen, and nothing has happened."""
    core.target.control({"mode": mode, "seed": 1})
    truth = core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": mode, "seed": 1, "execute": "never"})
    core.target.reset()
    assert core.plan(tx_id="X", **DEPOSIT) == truth
    assert core.target.stats()["executed"] == 0
    assert core.target.stats_of("X")["executed"] == 0


@pytest.mark.parametrize("mode", ["fail", "hang"])
def test_execute_before_lets_an_ill_target_execute(core: Caller, mode: str) -> None:
    """A back-end may commit and then fail to say so: the case behind the outcome `unknown`."""
    core.target.control({"mode": mode, "execute": "before"})
    assert core.plan(tx_id="X", **DEPOSIT).code in ("E500", "-")
    core.target.control({"mode": "normal"})
    assert core.says(tx_id="X", **DEPOSIT)["balance"] == 1010
    assert core.balance() == 1010


@pytest.mark.parametrize(
    ("settings", "delay", "drip"),
    [
        ({"mode": "normal"}, 0, 0),
        ({"mode": "normal", "delay_ms": 50}, 0.05, 0),
        ({"mode": "fail", "delay_ms": 50}, 0.05, 0),
        ({"mode": "deny", "delay_ms": 50}, 0.05, 0),
        ({"mode": "flaky", "delay_ms": 50, "rate": 0}, 0.05, 0),
        ({"mode": "flaky", "delay_ms": 50, "rate": 1}, 0.05, 0),
        ({"mode": "slow"}, 2.0, 0),
        ({"mode": "slow", "delay_ms": 0.5}, 0.0005, 0),
        ({"mode": "drip"}, 0, 0.1),
        ({"mode": "drip", "delay_ms": 5}, 0, 0.005),
    ],
)
def test_delay_is_part_of_the_plan(core: Caller, settings: dict[str, object], delay: float, drip: float) -> None:
    """The delay of a mode, in seconds, stands in the plan: before the answer, or for `drip` before each byte."""
    core.target.control(settings)
    plan = core.plan(**DEPOSIT)
    assert (plan.delay, plan.drip) == (delay, drip)


def test_flaky_fails_at_its_rate(core: Caller) -> None:
    """About `rate` of a thousand calls fail, and only the good ones are executed."""
    core.target.control({"mode": "flaky", "rate": 0.3, "seed": 7})
    bad = sum(core.code() == "E500" for _ in range(1000))
    assert 250 < bad < 350
    assert core.target.stats()["executed"] == 1000 - bad


@pytest.mark.parametrize(("rate", "code"), [(0, "0000"), (1, "E500")])
def test_flaky_at_the_ends_of_its_rate_is_sure(core: Caller, rate: int, code: str) -> None:
    """Rate 0 never fails, rate 1 always does."""
    core.target.control({"mode": "flaky", "rate": rate})
    assert {core.code() for _ in range(200)} == {code}


def test_a_seed_makes_chance_repeatable(core: Caller) -> None:
    """The same seed gives the same run, also after a reset; another seed another run."""

    def run() -> list[str]:
        return [core.code() for _ in range(64)]

    core.target.control({"mode": "flaky", "seed": 5})
    first = run()
    core.target.reset()
    assert run() == first
    core.target.control({"mode": "flaky", "seed": 6})
    assert run() != first


def test_without_a_seed_chance_is_the_stream_that_was_handed_in() -> None:
    """A simulator that hands in a stream gets a repeatable target, and control without a seed does not change that."""

    def run() -> list[str]:
        core = Caller(Target(Core, Random(3)))
        core.target.control({"mode": "flaky"})
        return [core.code() for _ in range(64)]

    assert run() == run()


# The memory


@pytest.mark.parametrize("mode", ["normal", "slow", "drop", "garbage", "drip", "hang"])
def test_what_was_executed_is_not_executed_again(core: Caller, mode: str) -> None:
    """A repeat under the same tx_id moves no money, whichever way the first answer was lost."""
    core.target.control({"mode": mode, "execute": "before"})
    core.plan(tx_id="X", **DEPOSIT)
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "normal"})
    assert core.balance() == 1010
    known = core.target.stats_of("X")
    assert (known["received"], known["executed"]) == (2, 1)


@pytest.mark.parametrize("mode", ["normal", "slow", "drip", "deny"])
def test_the_first_answer_is_given_again_where_the_trade_answers(core: Caller, mode: str) -> None:
    """The repeat gets the first answer, byte for byte, though the balance has changed and the mode too."""
    first = core.plan(tx_id="X", **DEPOSIT)
    core.plan(**DEPOSIT)
    core.target.control({"mode": mode})
    again = core.plan(tx_id="X", **DEPOSIT)
    assert (again.status, again.body, again.code) == (200, first.body, "0000")


def test_an_ill_target_is_ill_towards_a_repeat_too(core: Caller) -> None:
    """A system error is no word of the trade: `fail` fails for a remembered transaction as for any other."""
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "fail"})
    assert core.code(tx_id="X", **DEPOSIT) == "E500"
    assert core.target.stats_of("X") == {"received": 2, "executed": 1, "code": "E500"}


def test_a_denial_is_no_execution(core: Caller) -> None:
    """What was denied for want of funds may succeed later under the same tx_id."""
    withdraw = {"tx_id": "X", "op": "WITHDRAW", "account": "A-1", "amount": 1005}
    assert core.code(**withdraw) == "B201"
    assert core.target.stats_of("X")["executed"] == 0
    core.plan(**DEPOSIT)
    assert core.code(**withdraw) == "0000"
    assert core.target.stats_of("X") == {"received": 2, "executed": 1, "code": "0000"}


def test_inquiry_tells_what_became_of_a_transaction(core: Caller) -> None:
    """INQUIRE tells received, executed and the first answer, and is not itself executed."""
    first = core.says(tx_id="X", **DEPOSIT)
    executed_before = core.target.stats()["executed"]
    answer = core.says(tx_id="I", op="INQUIRE", inquire_tx_id="X")
    assert (answer["code"], answer["tx_id"]) == ("0000", "I")
    assert (answer["received"], answer["executed"], answer["result"]) == (True, True, first)
    assert core.target.stats()["executed"] == executed_before
    assert core.target.stats_of("I") == {"received": 1, "executed": 0, "code": "0000"}


def test_inquiry_about_what_was_received_but_not_executed(core: Caller) -> None:
    """A transaction that failed was received, not executed, and has no result."""
    core.target.control({"mode": "fail"})
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "normal"})
    answer = core.says(op="INQUIRE", inquire_tx_id="X")
    assert (answer["received"], answer["executed"], answer["result"]) == (True, False, None)


def test_inquiry_under_the_tx_id_that_it_asks_about_does_not_make_it_received(core: Caller) -> None:
    """A hub may ask under the same tx_id, twice: never seen stays never seen."""
    for _ in range(2):
        answer = core.says(tx_id="X", op="INQUIRE", inquire_tx_id="X")
        assert (answer["received"], answer["executed"], answer["result"]) == (False, False, None)


def test_inquiry_about_an_executed_one_under_its_own_tx_id(core: Caller) -> None:
    """The inquiry is answered, not the memory of the transaction."""
    first = core.says(tx_id="X", **DEPOSIT)
    answer = core.says(tx_id="X", op="INQUIRE", inquire_tx_id="X")
    assert (answer["received"], answer["executed"], answer["result"]) == (True, True, first)


# The books


def test_books_of_a_mixed_day(core: Caller) -> None:
    """Calls, executions and answers by code are counted; a page without a code under `-`, no answer not at all."""
    core.plan(**DEPOSIT)
    for mode in ("fail", "deny", "garbage", "drop", "hang"):
        core.target.control({"mode": mode})
        core.plan(**DEPOSIT)
    core.target.receive(b"no JSON")
    assert core.target.stats() == {
        "mode": "hang",
        "calls": 7,
        "inflight": 1,
        "max_inflight": 1,
        "executed": 3,
        "by_code": {"0000": 1, "E500": 1, "B299": 1, "-": 1},
    }


def test_inflight_rises_with_each_call_and_falls_with_each_end(core: Caller) -> None:
    """An answer and a hang-up each end a call once; the highest mark stays."""
    calls = [core.call() for _ in range(3)]
    assert core.target.stats()["inflight"] == 3
    core.target.answered(calls[0])
    core.target.left(calls[0])
    core.target.left(calls[1])
    core.target.left(calls[1])
    core.target.answered(calls[1])
    stats = core.target.stats()
    assert (stats["inflight"], stats["max_inflight"], stats["by_code"]) == (1, 3, {"0000": 1})


def test_a_caller_that_hung_up_has_no_last_code(core: Caller) -> None:
    """`code` is what was answered, not what would have been; the execution stands."""
    core.target.left(core.call(tx_id="X", **DEPOSIT))
    assert core.target.stats_of("X") == {"received": 1, "executed": 1, "code": None}


def test_one_never_seen_has_zeros(core: Caller) -> None:
    """Asking about an unknown tx_id answers zeros and null, and does not make it known."""
    nothing = {"received": 0, "executed": 0, "code": None}
    assert core.target.stats_of("X") == nothing
    assert core.target.stats_of("X") == nothing


def test_what_is_known_of_a_transaction_counts_whole_answers_and_lies(core: Caller) -> None:
    """Received, executed, answered, lied and the last code; a page is an answer without one; a lie is none at all."""
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "garbage"})
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "hang"})
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "deny"})
    call = core.call(tx_id="Y")
    core.target.lied(call)
    core.target.left(call)
    assert core.target.known("X") == Known(received=3, executed=1, answered=2, lied=0, code="0000")
    assert core.target.known("Y") == Known(received=1, executed=0, answered=0, lied=1, code=None)
    assert core.target.known("Z") == Known(0, 0, 0, 0, None)
    assert set(core.target.tx_ids()) == {"X", "Y"}
    assert core.target.stats()["inflight"] == 0


def test_what_waits_for_its_turn_is_executed_when_it_comes(core: Caller) -> None:
    """Counted on arrival; executed by the mode of its turn; until then its caller sees nothing."""
    calls = [core.target.arrive(b'{"tx_id": "%b", "op": "BALANCE", "account": "A-1"}' % name) for name in (b"X", b"Y")]
    assert [call.plan.ending for call in calls] == [HANG, HANG]
    assert (core.target.inflight, core.target.known("X")) == (2, Known(1, 0, 0, 0, None))
    core.target.work(calls[0])
    core.target.control({"mode": "fail"})
    core.target.work(calls[1])
    assert [call.plan.code for call in calls] == ["0000", "E500"]
    assert [core.target.known(tx_id).executed for tx_id in "XY"] == [1, 0]


def test_what_finds_no_room_is_a_503_without_a_code(core: Caller) -> None:
    """Received, answered, not executed."""
    call = core.target.arrive(b'{"tx_id": "X"}')
    core.target.overload(call)
    core.target.answered(call)
    assert (call.plan.ending, call.plan.status, call.plan.code) == (ANSWER, 503, "-")
    assert core.target.known("X") == Known(received=1, executed=0, answered=1, lied=0, code=None)
    assert core.target.stats()["by_code"] == {"-": 1}


def test_what_is_denied_unread_is_no_execution(core: Caller) -> None:
    """Of a request whose tx_id alone was read: B298, which is final."""
    call = core.target.deny_unread("X")
    core.target.answered(call)
    assert (call.plan.status, json.loads(call.plan.body)["tx_id"]) == (413, "X")
    assert core.target.known("X") == Known(received=1, executed=0, answered=1, lied=0, code="B298")


def test_an_inquiry_that_waits_does_not_make_it_received(core: Caller) -> None:
    """Nor where another one about the same is answered before it."""
    inquiry = b'{"tx_id": "X", "op": "INQUIRE", "inquire_tx_id": "X"}'
    core.target.arrive(inquiry)
    assert json.loads(core.target.receive(inquiry).plan.body)["received"] is False


def test_reset_is_a_new_day_in_the_same_mode(core: Caller) -> None:
    """Figures, accounts and memory start anew; the mode stays."""
    core.plan(tx_id="X", **DEPOSIT)
    core.target.control({"mode": "slow", "delay_ms": 7})
    core.target.reset()
    assert core.target.stats() == {
        "mode": "slow",
        "calls": 0,
        "inflight": 0,
        "max_inflight": 0,
        "executed": 0,
        "by_code": {},
    }
    assert core.target.settings.delay_ms == 7
    assert core.says(tx_id="X", op="BALANCE", account="A-1")["balance"] == 1000


def test_a_call_in_flight_over_a_reset_belongs_to_the_day_before(core: Caller) -> None:
    """It is still in flight, since its connection is open, but its answer is in no figure of the new day."""
    call = core.call(tx_id="X")
    core.target.reset()
    assert (core.target.stats()["inflight"], core.target.stats()["max_inflight"]) == (1, 1)
    core.target.answered(call)
    stats = core.target.stats()
    assert (stats["calls"], stats["inflight"], stats["by_code"]) == (0, 0, {})
    assert core.target.stats_of("X") == {"received": 0, "executed": 0, "code": None}


# Requests that are no transactions


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "JSON object"),
        (b"x", "JSON object"),
        (b"[]", "JSON object"),
        (b'"T-1"', "JSON object"),
        (b'{"tx_id": "T-1"} {}', "JSON object"),
        (b'\xef\xbb\xbf{"tx_id": "T-1"}', "JSON object"),
        (b'{"tx_id": "T-1", "x": "\xff"}', "JSON object"),
        (b'{"tx_id": "T-1", "x": NaN}', "NaN"),
        (b'{"tx_id": "T-1", "x": -Infinity}', "Infinity"),
        (b"[" * 100_000, "JSON object"),
        (b'{"tx_id": "T-1", "x": ' + b"9" * 5000 + b"}", "JSON object"),
        (b"{}", "tx_id"),
        (b'{"tx_id": null}', "tx_id"),
        (b'{"tx_id": 7}', "tx_id"),
        (b'{"tx_id": ""}', "tx_id"),
        (b'{"tx_id": "a b"}', "tx_id"),
        (b'{"tx_id": "T-1\\n"}', "tx_id"),
        (b'{"tx_id": "' + b"x" * 129 + b'"}', "tx_id"),
    ],
)
def test_no_transaction_gets_e400_that_names_the_fault(core: Caller, body: bytes, named: str) -> None:
    """HTTP 400, code E400, no tx_id, and the message says what is wrong."""
    plan = core.target.receive(body).plan
    answer = json.loads(plan.body)
    assert (plan.ending, plan.status, plan.code) == (ANSWER, 400, "E400")
    assert (answer["code"], answer["tx_id"]) == ("E400", None)
    assert named in answer["message"]
    assert core.target.stats()["executed"] == 0


@pytest.mark.parametrize(
    ("field", "named"),
    [({"op": 5}, "op"), ({"op": None}, "op"), ({"op": "INQUIRE"}, "inquire_tx_id")],
)
def test_a_bad_field_gets_e400_with_its_tx_id(core: Caller, field: dict[str, object], named: str) -> None:
    """Where the tx_id can be read it is echoed."""
    answer = core.says(tx_id="X", **field)
    assert (answer["code"], answer["tx_id"]) == ("E400", "X")
    assert named in answer["message"]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_no_mode_concerns_what_is_no_transaction(core: Caller, mode: str) -> None:
    """E400 comes at once, whatever the mode."""
    core.target.control({"mode": mode})
    plan = core.target.receive(b"x").plan
    assert (plan.code, plan.delay, plan.drip) == ("E400", 0, 0)


@pytest.mark.parametrize("tx_id", ["a", "Az09._:-", "x" * 128])
def test_every_tx_id_of_the_contract_is_echoed(core: Caller, tx_id: str) -> None:
    """1 to 128 of A-Z a-z 0-9 . _ : - are good, and come back."""
    assert core.says(tx_id=tx_id) == {"tx_id": tx_id, "code": "0000", "message": "done"}


# The settings


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ([], "JSON object"),
        ("fail", "JSON object"),
        (None, "JSON object"),
        ({"mode": "sick"}, "normal, fail, slow, deny, hang, drop, garbage, flaky, drip"),
        ({"mode": None}, "normal, fail"),
        ({"mode": ["fail"]}, "normal, fail"),
        ({"delay": 5}, "delay_ms, execute, seed"),
        ({"mode": "hang", "delay_ms": 5}, "execute, seed"),
        ({"mode": "fail", "rate": 0.5}, "delay_ms, execute, seed"),
        ({"mode": "slow", "delay_ms": True}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": "5"}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": None}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": -1}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": 3_600_001}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": 10**400}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": 10**5000}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": float("nan")}, "0 to 3600000"),
        ({"mode": "slow", "delay_ms": float("inf")}, "0 to 3600000"),
        ({"mode": "flaky", "rate": 1.01}, "0 to 1"),
        ({"mode": "flaky", "rate": -0.01}, "0 to 1"),
        ({"mode": "flaky", "rate": float("nan")}, "0 to 1"),
        ({"mode": "flaky", "rate": True}, "0 to 1"),
        ({"execute": "after"}, "before or never"),
        ({"execute": True}, "before or never"),
        ({"execute": ["never"]}, "before or never"),
        ({"mode": "deny", "execute": "before"}, "never"),
        ({"seed": 1.0}, "integer"),
        ({"seed": True}, "integer"),
        ({"seed": "1"}, "integer"),
        ({"mode": "slow", "delay_ms": 5, "seed": "1"}, "integer"),
    ],
)
def test_a_wrong_setting_is_refused_naming_what_is_allowed(core: Caller, wanted: object, allowed: str) -> None:
    """The refusal names what is allowed and what was found, and nothing is changed, not even what was right."""
    core.target.control({"mode": "slow", "delay_ms": 77})
    before = core.target.settings
    with pytest.raises(Refused) as refusal:
        core.target.control(wanted)
    assert allowed in str(refusal.value)
    assert "not " in str(refusal.value)
    assert len(str(refusal.value)) < 250
    assert core.target.settings is before


def test_a_refusal_does_not_start_chance_anew(core: Caller) -> None:
    """A seeded run goes on where it was when a setting is refused."""
    core.target.control({"mode": "flaky", "seed": 5})
    whole = [core.code() for _ in range(40)]
    core.target.control({"mode": "flaky", "seed": 5})
    first = [core.code() for _ in range(20)]
    with pytest.raises(Refused):
        core.target.control({"mode": "flaky", "seed": 5, "rate": 2})
    assert first + [core.code() for _ in range(20)] == whole


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "slow", "delay_ms": 0, "execute": "before", "seed": None},
        {"mode": "slow", "delay_ms": 3_600_000, "execute": "never", "seed": -3},
        {"mode": "flaky", "rate": 0, "delay_ms": 0.5, "execute": "before", "seed": 2**70},
        {"mode": "hang", "execute": "before", "seed": 0},
    ],
)
def test_good_settings_are_in_force_as_given(core: Caller, settings: dict[str, object]) -> None:
    """The ends of each range are good, 0 is a value, and the answer shows the mode and what it takes, no more."""
    core.target.control(settings)
    assert core.target.settings.shown() == settings


def test_what_is_not_given_goes_back_to_the_default_of_the_mode(core: Caller) -> None:
    """Parameters do not outlive the next control; without `mode` the mode stays."""
    core.target.control({"mode": "slow", "delay_ms": 5, "execute": "never", "seed": 4})
    core.target.control({"execute": "never"})
    assert core.target.settings.shown() == {"mode": "slow", "delay_ms": 2000, "execute": "never", "seed": None}
    core.target.control({"mode": "normal"})
    assert core.target.settings.shown() == {"mode": "normal", "delay_ms": 0, "execute": "before", "seed": None}


def test_a_fresh_target_is_normal(core: Caller) -> None:
    """It starts in mode normal, with that mode's defaults."""
    assert core.target.settings.shown() == {"mode": "normal", **MODES["normal"]}


# The trades


@pytest.mark.parametrize(
    ("tx", "code"),
    [
        ({}, "0000"),
        ({"op": "BALANCE", "account": "110-234-567890"}, "0000"),
        ({"op": "BALANCE", "account": "A-10"}, "0000"),
        ({"op": "BALANCE", "account": "A-11"}, "B202"),
        ({"op": "BALANCE", "account": ["A-1"]}, "B202"),
        ({"op": "BALANCE"}, "B202"),
        ({"op": "WITHDRAW", "account": "A-1", "amount": 1000}, "0000"),
        ({"op": "WITHDRAW", "account": "A-1", "amount": 1001}, "B201"),
        ({"op": "WITHDRAW", "account": "A-1", "amount": 0}, "B208"),
        ({"op": "WITHDRAW", "account": "A-1", "amount": -5}, "B208"),
        ({"op": "DEPOSIT", "account": "A-1", "amount": True}, "B208"),
        ({"op": "DEPOSIT", "account": "A-1", "amount": 10.0}, "B208"),
        ({"op": "DEPOSIT", "account": "A-1", "amount": "10"}, "B208"),
        ({"op": "DEPOSIT", "account": "A-1", "amount": 10**15}, "0000"),
        ({"op": "DEPOSIT", "account": "A-1", "amount": 10**15 + 1}, "B208"),
        ({"op": "DEPOSIT", "account": "A-1"}, "B208"),
        ({"op": "TRANSFER", "account": "A-1", "to_account": "A-2", "amount": 1001}, "B201"),
        ({"op": "TRANSFER", "account": "A-1", "to_account": "B-2", "amount": 1}, "B202"),
        ({"op": "TRANSFER", "account": "A-1", "amount": 1}, "B202"),
        ({"op": "TRANSFER", "account": "B-1", "to_account": "A-2", "amount": 1}, "B202"),
        ({"op": "SUBMIT", "policy": "P-1", "claim": "C-1", "amount": 5}, "B209"),
        ({"op": "balance", "account": "A-1"}, "B209"),
        ({"op": ""}, "B209"),
    ],
)
def test_core_answers_by_code(core: Caller, tx: dict[str, object], code: str) -> None:
    """CORE says yes, or which fault; a denial moves nothing."""
    assert core.code(**tx) == code
    if code != "0000":
        assert (core.balance("A-1"), core.balance("A-2")) == (1000, 1000)
        assert core.target.stats()["by_code"] == {code: 1, "0000": 2}


def test_core_moves_money(core: Caller) -> None:
    """Each answer tells the balance after it, and a transfer moves the same amount on both sides."""
    assert core.balance("110-234-567890") == 1_000_000
    assert core.says(op="DEPOSIT", account="A-1", amount=50)["balance"] == 1050
    assert core.says(op="WITHDRAW", account="A-1", amount=20)["balance"] == 1030
    assert core.says(op="TRANSFER", account="A-1", to_account="A-2", amount=1030)["balance"] == 0
    assert (core.balance("A-1"), core.balance("A-2")) == (0, 2030)


def test_a_transfer_to_the_account_itself_comes_out_even(core: Caller) -> None:
    """It makes no money and loses none."""
    assert core.says(op="TRANSFER", account="A-1", to_account="A-1", amount=300)["balance"] == 1000
    assert core.balance("A-1") == 1000


@pytest.mark.parametrize(
    ("tx", "code"),
    [
        ({}, "0000"),
        ({"op": "SUBMIT", "policy": "P-10", "claim": "C-1", "amount": 5}, "0000"),
        ({"op": "SUBMIT", "policy": "P-11", "claim": "C-1", "amount": 5}, "B210"),
        ({"op": "SUBMIT", "claim": "C-1", "amount": 5}, "B210"),
        ({"op": "SUBMIT", "policy": "P-1", "amount": 5}, "B212"),
        ({"op": "SUBMIT", "policy": "P-1", "claim": "", "amount": 5}, "B212"),
        ({"op": "SUBMIT", "policy": "P-1", "claim": 7, "amount": 5}, "B212"),
        ({"op": "SUBMIT", "policy": "P-1", "claim": "C-1", "amount": 0}, "B208"),
        ({"op": "SUBMIT", "policy": "P-1", "claim": "C-1"}, "B208"),
        ({"op": "STATUS", "policy": "P-0", "claim": "C-1"}, "B210"),
        ({"op": "STATUS", "policy": "P-1"}, "B212"),
        ({"op": "BALANCE", "account": "A-1"}, "B209"),
    ],
)
def test_claim_answers_by_code(claim: Caller, tx: dict[str, object], code: str) -> None:
    """CLAIM says yes, or which fault."""
    assert claim.code(**tx) == code


def test_a_claim_can_be_submitted_once(claim: Caller) -> None:
    """The same claim of the same policy is B211 under another tx_id; STATUS knows it, and no other."""
    submit: dict[str, object] = {"op": "SUBMIT", "policy": "P-1", "claim": "C-1", "amount": 5}
    assert claim.says(op="STATUS", policy="P-1", claim="C-1")["status"] == "none"
    assert claim.says(tx_id="X", **submit)["status"] == "submitted"
    assert claim.code(tx_id="Y", **submit) == "B211"
    assert claim.code(tx_id="X", **submit) == "0000"
    assert claim.says(op="STATUS", policy="P-1", claim="C-1")["status"] == "submitted"
    assert claim.says(op="STATUS", policy="P-2", claim="C-1")["status"] == "none"
