"""Proves the hub by simulation, seed by seed, on every core; what fails is said with the command that repeats it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import click

from eaimw.sim.isolation import COST, FAULTS, Isolation, isolation
from eaimw.sim.prove import Failure, Proved, prove


@click.command()
@click.option("--seeds", type=click.IntRange(1), help="How many seeds. [200; with --seed: that one alone]")
@click.option("--seed", type=click.IntRange(0), help="The first seed.")
@click.option("--jobs", type=click.IntRange(1, 256), default=os.cpu_count() or 1, help="Processes. [one per core]")
@click.option("--all", "goes_on", is_flag=True, help="List every seed that fails, instead of ending at the first.")
@click.option("--isolation", "alone", is_flag=True, help="The table of CLAIM beside an ailing CORE alone, no seeds.")
@click.pass_context
def main(ctx: click.Context, /, seeds: int | None, seed: int | None, jobs: int, goes_on: bool, alone: bool) -> None:
    """Play random runs of the hub in virtual time: settings, loads, callers, targets, links, and their faults.

    Each seed is two runs, with every invariant checked at every step: in the second one all targets but CLAIM are
    well, and CLAIM's replies and their times must be the same to the byte. Then CLAIM is put beside a CORE with each
    fault by itself, once where a step costs no time and once where it costs what a processor takes. Exit status 0 if
    all holds, else 1.
    """
    if alone and (seeds is not None or seed is not None or goes_on):
        raise click.UsageError("--isolation stands alone: it has no seeds", ctx)
    first = seed or 0
    count = seeds or (200 if seed is None else 1)
    began = time.monotonic()
    # Ctrl-C is for this process, which then ends the others.
    with ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            if alone:
                sys.exit(0 if isolation_holds(pool) else 1)
            results = watched(pool.map(prove, range(first, first + count)), count, "seeds")
            failures, transactions, steps = judged(results, goes_on)
            is_isolated = count == 1 or bool(failures) or isolation_holds(pool)
        finally:
            pool.shutdown(cancel_futures=True)
    if failures:
        print(f"failed: {' '.join(str(failure.seed) for failure in failures)}")
    if failures or not is_isolated:
        sys.exit(1)
    took = time.monotonic() - began
    seeds_hold = "1 seed holds" if count == 1 else f"{count:,} seeds hold"
    print(f"{seeds_hold}: {transactions:,} transactions in {steps:,} steps (simulated), {took:.0f} s on {jobs}")


def watched(results: Iterable[Proved | Failure], count: int, what: str) -> Iterator[Proved | Failure]:
    """The same, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from results
        return
    with click.progressbar(results, length=count, label=what, file=sys.stderr) as bar:
        yield from bar


def judged(results: Iterable[Proved | Failure], goes_on: bool) -> tuple[list[Failure], int, int]:
    """The failures, transactions and steps; each failure is told at once."""
    failures, transactions, steps = [], 0, 0
    for result in results:
        if isinstance(result, Proved):
            transactions += result.transactions
            steps += result.steps
            continue
        failures.append(result)
        tell(result, f"seed {result.seed}")
        print(f"again: scripts/prove --seed {result.seed}", flush=True)
        if not goes_on:
            break
    return failures, transactions, steps


def tell(failure: Failure, where: str) -> None:
    """What came before it, and what was broken."""
    print()
    for line in failure.story:
        print("  " + line)
    print(f"{where}: {failure.why}")


def isolation_holds(pool: ProcessPoolExecutor) -> bool:
    """The table of CLAIM beside an ailing CORE; whether every bound holds."""
    free, costly = pool.map(isolation, FAULTS), pool.map(isolation_at_a_cost, FAULTS)
    print(
        "CLAIM beside an ailing CORE, against CLAIM beside a healthy one (simulated). A step of the loop costs nothing;"
    )
    print(f"then it costs {COST * 1e6:g} us of processor time, and answers of CLAIM move:")
    print(
        f"  {'what ails CORE':20} {'of CORE unlike':>15} {'of CLAIM unlike':>16}   {'moved at most':>16} {'bound':>9}"
    )
    failed: list[str] = []
    failures: list[tuple[str, Failure]] = []
    for fault, *both in zip(FAULTS, free, costly, strict=True):
        failures += [(fault, each) for each in both if isinstance(each, Failure)]
        holds = all(isinstance(each, Isolation) and each.holds for each in both)
        failed += [] if holds else [fault]
        print(f"  {fault:20} {figures(*both)}{'' if holds else '  FAILED'}", flush=True)
    for fault, failure in failures:
        tell(failure, fault)
    if failed:
        print(f"failed: {', '.join(failed)}\nagain: scripts/prove --isolation")
    return not failed


def figures(free: Isolation | Failure, costly: Isolation | Failure) -> str:
    """Of one row; none where a run has failed."""
    if isinstance(free, Failure) or isinstance(costly, Failure):
        return f"{'-':>15} {'-':>16}   {'-':>16} {'-':>9}"
    moved, bound = costly.latest * 1e3, costly.bound * 1e3
    return f"{free.harmed:15,} {free.unlike:6,} of {free.replies:6,}   {moved:13.3f} ms {bound:6.1f} ms"


def isolation_at_a_cost(fault: str) -> Isolation | Failure:
    """For another process."""
    return isolation(fault, charge=COST)


if __name__ == "__main__":
    main(prog_name="scripts/prove")
