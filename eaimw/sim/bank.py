"""The trades of the simulated targets: CORE keeps accounts, CLAIM keeps insurance claims.

A trade decides and changes nothing: `decide` hands back the answer together with its effect, which the target
applies or not, as its mode says. An answer without an effect is a denial.

    code   by     meaning
    -----  -----  -------------------------------------------------------------
    0000   both   done; a transaction without `op` always is
    B201   CORE   insufficient funds
    B202   CORE   no such account (`account`, or TRANSFER's `to_account`)
    B208   both   `amount` is no integer from 1 to 1,000,000,000,000,000
    B209   both   no such operation
    B210   CLAIM  no such policy
    B211   CLAIM  this claim of this policy was submitted already
    B212   CLAIM  `claim` is no string of 1 to 128 characters

The fields are looked at in the order accounts or policy and claim, amount, funds: the first fault is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

__all__ = ["TRADES", "Anything", "Claim", "Core"]

MOST_AMOUNT = 10**15  # a bound keeps every balance printable

Json = dict[str, object]
Decision = tuple[Json, Callable[[], None] | None]


class Core:
    """Accounts with balances: BALANCE, DEPOSIT, WITHDRAW, TRANSFER."""

    name = "CORE"
    _ops = ("BALANCE", "DEPOSIT", "WITHDRAW", "TRANSFER")

    def __init__(self) -> None:
        self._balances = Counter({"110-234-567890": 1_000_000, **{f"A-{n}": 1_000 for n in range(1, 11)}})

    def decide(self, tx: Json) -> Decision:
        op = tx.get("op")
        if op is None:
            return _done()
        if op not in self._ops:
            return _no_such_op(self.name, self._ops)
        account = tx.get("account")
        if not isinstance(account, str) or account not in self._balances:
            return _denied("B202", "no such account")
        if op == "BALANCE":
            return _done(balance=self._balances[account])
        to_account = tx.get("to_account")
        if op == "TRANSFER" and (not isinstance(to_account, str) or to_account not in self._balances):
            return _denied("B202", "no such account to transfer to")
        amount = _amount_of(tx)
        if amount is None:
            return _bad_amount()
        if op != "DEPOSIT" and self._balances[account] < amount:
            return _denied("B201", "insufficient funds")
        # Summed by account, so that a transfer to the account itself comes out even.
        changes: Counter[str] = Counter()
        changes[account] += amount if op == "DEPOSIT" else -amount
        if op == "TRANSFER":
            changes[str(to_account)] += amount
        return _done(lambda: self._balances.update(changes), balance=self._balances[account] + changes[account])


class Claim:
    """Claims against policies: SUBMIT, STATUS."""

    name = "CLAIM"
    _ops = ("SUBMIT", "STATUS")

    def __init__(self) -> None:
        self._policies = frozenset(f"P-{n}" for n in range(1, 11))
        self._submitted: set[tuple[str, str]] = set()

    def decide(self, tx: Json) -> Decision:
        op = tx.get("op")
        if op is None:
            return _done()
        if op not in self._ops:
            return _no_such_op(self.name, self._ops)
        policy, claim = tx.get("policy"), tx.get("claim")
        if not isinstance(policy, str) or policy not in self._policies:
            return _denied("B210", "no such policy")
        if not isinstance(claim, str) or not 1 <= len(claim) <= 128:
            return _denied("B212", "claim must be a string of 1 to 128 characters")
        key = (policy, claim)
        if op == "STATUS":
            return _done(status="submitted" if key in self._submitted else "none")
        if _amount_of(tx) is None:
            return _bad_amount()
        if key in self._submitted:
            return _denied("B211", "already claimed")
        return _done(lambda: self._submitted.add(key), status="submitted")


class Anything:
    """A back-end of which nothing is known: whatever it is asked for is done."""

    def decide(self, tx: Json) -> Decision:
        return _done()


TRADES: dict[str, type[Core] | type[Claim]] = {"CORE": Core, "CLAIM": Claim}


def _nothing() -> None:
    """The effect of what only reads: done, and nothing changed."""


def _done(effect: Callable[[], None] = _nothing, **results: object) -> Decision:
    return {"code": "0000", "message": "done", **results}, effect


def _denied(code: str, message: str) -> Decision:
    return {"code": code, "message": message}, None


def _no_such_op(name: str, ops: tuple[str, ...]) -> Decision:
    return _denied("B209", f"no such operation: {name} has {', '.join(ops)} and INQUIRE")


def _bad_amount() -> Decision:
    return _denied("B208", f"amount must be an integer from 1 to {MOST_AMOUNT}")


def _amount_of(tx: Json) -> int | None:
    """The amount, or None if it is none: a bool and 10.0 are no integers here."""
    amount = tx.get("amount")
    return amount if type(amount) is int and 1 <= amount <= MOST_AMOUNT else None
