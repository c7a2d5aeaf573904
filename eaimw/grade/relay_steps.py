"""Steps 3 to 7: stories told to a relay that stands between the grader and two simulated targets.

Each step looks at its own matter alone, and speaks to one target at a time where it can, so that a mistake shows
in the step that teaches it. Where an order will do, times are not compared: "at once" means before the slow
target's answer, however busy the machine is.
"""

from __future__ import annotations

import time

from eaimw.grade.log_step import changes_are_logged
from eaimw.grade.scene import Options, Scene
from eaimw.grade.steps import Failed

OPTIONS = {
    3: Options(fail_threshold=3, reset_timeout=60, max_inflight=10, timeout=3),
    4: Options(fail_threshold=3, reset_timeout=60, max_inflight=2, timeout=2.4),
    5: Options(fail_threshold=3, reset_timeout=60, max_inflight=3, timeout=5),
    6: Options(fail_threshold=2, reset_timeout=1, max_inflight=10, timeout=3),
    7: Options(fail_threshold=3, reset_timeout=1.5, max_inflight=10, timeout=1.2),
}


def play(step: int, scene: Scene) -> None:
    """Tell the step's story; Failed if the relay does not pass."""
    for target in (scene.core, scene.claim):
        target.start_anew()
    for name in ("CORE", "CLAIM"):
        code = scene.one(name)
        if code != "0000":
            raise Failed(
                f"{name} was healthy, and the first transaction for it got {code} instead of 0000",
                "The target's reply is passed on with its code. The targets' addresses are in --core-url and "
                "--claim-url; a transaction names its target in the field `target`.",
            )
    STORIES[step](scene)
    scene.relay.finish(scene.options.timeout + scene.patience)


def open_means_no_call(scene: Scene) -> None:
    """Step 3. Only E500 is used here, so that a relay that still counts every code but 0000 passes."""
    threshold = scene.options.fail_threshold
    scene.core.become("fail")
    scene.one_by_one("CORE", threshold)
    scene.settle()
    calls = scene.core.calls
    refused = scene.together("CORE", 5)
    others = sorted({reply.code for reply in refused} - {"E904"})
    if others:
        raise Failed(
            f"CORE had failed {threshold} times in a row (--fail-threshold {threshold}), and the next transactions got "
            f"{' and '.join(others)} instead of E904",
            "Ask the target's breaker before each call: if allow() says no, answer E904. After each call report to "
            "it: record_failure() for E500 (and for a call that raised), record_success() for 0000. Give the breaker "
            "the number from --fail-threshold.",
        )
    more = scene.core.calls - calls
    if more:
        raise Failed(
            f"the circuit was open and the relay answered E904, and yet CORE was called {more} more times",
            "Open means no call: return E904 as soon as allow() says no, before anything is sent.",
        )
    usual = sorted(reply.took for reply in refused)[2]
    if usual > scene.options.timeout / 2:
        raise Failed(
            f"E904 took {usual:.1f} s (--timeout {scene.options.timeout:g}): a refusal must come at once",
            "An open circuit is there so that nobody waits: answer E904 without sleeping, trying again or waiting "
            "for another call.",
        )


def full_means_no_wait(scene: Scene) -> None:
    """Step 4."""
    places, slow_s = scene.options.max_inflight, 1.2
    extra = scene.options.fail_threshold + 1  # enough to open the circuit, if refusals were counted as failures
    scene.core.start_anew()
    scene.core.become("slow", delay_ms=slow_s * 1000)
    replies = scene.together("CORE", places + extra)
    served = [reply for reply in replies if reply.code not in ("E904", "E905")]
    refused = [reply for reply in replies if reply.code == "E905"]
    if len(served) + len(refused) < len(replies):
        raise Failed(
            f"CORE was healthy but full, and {len(replies) - len(served) - len(refused)} of {len(replies)} "
            "transactions got E904",
            "Full is E905, not E904; and E905 is the relay's own refusal: CORE was not asked, so it has not failed, "
            "and nothing is reported to the breaker that could open the circuit.",
        )
    if len(refused) != extra:
        raise Failed(
            f"{len(replies)} transactions came at once with --max-inflight {places}, and {len(refused)} got E905 "
            f"instead of {extra}",
            "One semaphore of --max-inflight places per target; whoever finds none gets E905 at once: "
            "acquire(blocking=False), never acquire() or a queue. And each transaction needs a thread of its own, "
            "or nothing ever comes at the same time.",
        )
    if max(reply.place for reply in refused) > min(reply.place for reply in served):
        raise Failed(
            "E905 was answered only after a slow call had come back: the refused had been kept waiting",
            "Full means no wait: no acquire with a timeout, no queue, no sleep. The answer is E905 at once.",
        )
    most = scene.core.stats()["max_inflight"]
    if most != places:
        raise Failed(
            f"with --max-inflight {places} CORE had at most {most} calls at the same time",
            "So many calls may be under way at once, not fewer and not more: hold the place during the call, and "
            "nothing else (a lock around the call lets them pass one after another).",
        )
    scene.core.become("normal")
    if scene.one("CORE") == "E904":
        raise Failed(
            f"CORE was healthy, and after {extra} refusals with E905 its circuit was open (E904)",
            "E905 is the relay's own refusal: CORE was not asked, so it has not failed. Report to the breaker only "
            "what came of a call.",
        )
    scene.must_give_places_back(f"{places} slow calls had been answered")
    for mode, what in (("fail", "failed"), ("drop", "lost their connection"), ("hang", "timed out")):
        scene.core.become(mode)
        scene.together("CORE", places)
        scene.must_give_places_back(f"{places} calls had {what}")


def claim_is_left_alone(scene: Scene) -> None:
    """Step 5."""
    places = scene.options.max_inflight
    scene.core.become("slow", delay_ms=2400)
    slow = scene.send("CORE", places)
    # Not required: what a relay lets through at once is step 4's matter.
    scene.core.has_in_flight(places, within=1.0)
    codes = [reply.code for reply in scene.together("CLAIM", 2)]
    if set(codes) != {"0000"}:
        raise Failed(
            f"CORE was slow with all its {places} places taken, and CLAIM, which was healthy, got "
            f"{' and '.join(sorted(set(codes)))}",
            "Each target has a semaphore of its own, in a dictionary by target name: CORE's slow calls must not use "
            "up CLAIM's places.",
        )
    if not all(scene.relay.is_waiting(tx_id) for tx_id in slow):
        raise Failed(
            "CORE was slow, and CLAIM, which was healthy, was answered only after a call to CORE had come back",
            "Nothing that CLAIM needs may be held while CORE is called: no common lock, no common thread, no reading "
            "of the input that waits for a reply.",
        )
    late = sorted({reply.code for reply in scene.replies(slow)} - {"0000"})
    if late:
        raise Failed(
            f"CORE took 2.4 s (--timeout {scene.options.timeout:g}) and then answered 0000, and the relay said "
            f"{' and '.join(late)}",
            "A slow answer within the timeout is an answer like any other.",
        )
    scene.must_give_places_back(f"{places} slow calls had been answered")
    scene.core.become("fail")
    scene.one_by_one("CORE", scene.options.fail_threshold)
    scene.settle()
    code = scene.one("CORE")
    if code != "E904":
        raise Failed(
            f"CORE had failed {scene.options.fail_threshold} times in a row, and the next transaction for it got "
            f"{code} instead of E904, so there is no open circuit whose effect on CLAIM could be seen",
            "Pass step 3 first.",
        )
    calls = scene.claim.calls
    codes = scene.one_by_one("CLAIM", 3)
    if set(codes) != {"0000"} or scene.claim.calls != calls + 3:
        raise Failed(
            f"CORE's circuit was open, and CLAIM, which was healthy, got {' and '.join(sorted(set(codes)))}",
            "Each target has a breaker of its own, in a dictionary by target name: CORE's failures must not be "
            "counted for CLAIM.",
        )


def denials_are_no_failures(scene: Scene) -> None:
    """Step 7."""
    _denials_keep_it_closed(scene)
    _a_denial_ends_a_row(scene)
    _failures_still_count(scene)
    _a_denied_probe_closes(scene)


def _denials_keep_it_closed(scene: Scene) -> None:
    many = 3 * scene.options.fail_threshold + 1
    scene.core.become("deny")
    calls = scene.core.calls
    codes = scene.one_by_one("CORE", many)
    if set(codes) != {"B299"} or scene.core.calls != calls + many:
        raise Failed(
            f"CORE denied {many} transactions in a row with B299, and the relay said "
            f"{' and '.join(sorted(set(codes)))}; CORE was called {scene.core.calls - calls} times",
            "B299 is a business denial: the target is healthy and said no. Pass it on, and report record_success(). "
            "Only E500, E901 and E902 are failures, not every code but 0000.",
        )
    scene.core.become("normal")
    # An operation that CORE does not have is B209; an inquiry that does not say about what is E400.
    for fields in ({"op": "NO-SUCH-OPERATION"}, {"op": "INQUIRE"}):
        codes = scene.one_by_one("CORE", scene.options.fail_threshold + 1, **fields)
        if "E904" in codes:
            raise Failed(
                f"CORE refused operations that it does not know with {codes[0]}, and the circuit opened",
                "A target that answers with a code is healthy, whatever the code, also with HTTP status 4xx; only "
                "E500, E901 and E902 are failures.",
            )


def _a_denial_ends_a_row(scene: Scene) -> None:
    almost = scene.options.fail_threshold - 1
    for mode, times in (("fail", almost), ("deny", 1), ("fail", almost)):
        scene.core.become(mode)
        scene.one_by_one("CORE", times)
    scene.core.become("normal")
    if scene.one("CORE") == "E904":
        raise Failed(
            f"{almost} failures, a denial and {almost} failures opened the circuit (--fail-threshold "
            f"{scene.options.fail_threshold})",
            "A denial is a success, not nothing: report record_success(), which ends the row of failures.",
        )


def _failures_still_count(scene: Scene) -> None:
    for _ in range(3):
        codes = []
        for mode in ("fail", "hang", "drop"):
            scene.core.become(mode)
            codes.append(scene.one("CORE"))
        opened_at = time.monotonic()
        scene.settle()
        if scene.one("CORE") == "E904":
            return
        if time.monotonic() < opened_at + scene.options.reset_timeout:
            break  # else the machine was so busy that this may have been the probe
    raise Failed(
        "CORE answered E500, did not answer in time, and closed the connection, one after the other "
        f"(--fail-threshold {scene.options.fail_threshold}; the relay said {', '.join(codes)}), and the circuit "
        "did not open",
        "E500, E901 (timeout) and E902 (no connection) are failures, each of them: report record_failure() also where "
        "the call raised. If no failure opens it, pass step 3 first.",
    )


def _a_denied_probe_closes(scene: Scene) -> None:
    scene.core.become("deny")
    code = scene.until("CORE", lambda code: code != "E904")
    codes = scene.one_by_one("CORE", 3)
    if code != "B299" or set(codes) != {"B299"}:
        raise Failed(
            f"the circuit was open, its wait over, the probe denied with B299 (the relay said {code}), and the "
            f"next transactions got {' and '.join(sorted(set(codes)))} instead of B299",
            "A probe that is denied has found a healthy target: record_success(), and the circuit closes. A probe of "
            "which nothing is reported leaves it half-open for ever.",
        )


STORIES = {
    3: open_means_no_call,
    4: full_means_no_wait,
    5: claim_is_left_alone,
    6: changes_are_logged,
    7: denials_are_no_failures,
}
