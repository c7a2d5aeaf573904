"""The codes: one table, and what it says of each kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from eaimw import codes

# The contract's rows: code -> (outcome, sample, HTTP, tells when, comes again); the hub's own word.
HUB = {
    "E400": ("not_sent", "none", 400, False, False),
    "E500": ("unknown", "failure", 502, False, True),
    "E901": ("unknown", "failure", 504, False, True),
    "E902": ("unknown", "failure", 502, False, True),
    "E903": ("not_sent", "none", 404, False, False),
    "E904": ("not_sent", "none", 503, True, True),
    "E905": ("not_sent", "none", 503, True, True),
    "E906": ("not_sent", "none", 504, False, False),
    "E907": ("not_sent", "none", 429, True, True),
    "E908": ("not_sent", "none", 503, True, True),
    "E909": ("unknown", "none", 409, False, True),
    "E910": ("not_sent", "none", 422, False, False),
    "E911": ("not_sent", "none", 503, True, True),
    "E912": ("unknown", "none", 200, False, True),
    "E913": ("not_sent", "none", 503, True, True),
}


@pytest.mark.parametrize("code", HUB)
def test_each_row_is_the_contracts(code: str) -> None:
    """Outcome, sample, status, and what is said of coming again."""
    rule = codes.RULES[code]
    assert (rule.outcome, rule.sample, rule.http, rule.says_when, rule.comes_again) == HUB[code]


def test_only_three_codes_are_failures() -> None:
    """E500, E901 and E902, and no other, count against a target."""
    assert {"E500", "E901", "E902"} == codes.FAILURES


@pytest.mark.parametrize("value", ["0000", "B201", "E500", "ZZZZ", "9999"])
def test_a_code_is_four_of_capitals_and_digits(value: str) -> None:
    """Exactly four of A-Z 0-9."""
    assert codes.is_code(value)


@pytest.mark.parametrize(
    "value", [0, "0", " 0000", "0000 ", "00000", "e500", "E-01", "", None, True, ["0000"], "\uff10000", "0000\n"]
)
def test_anything_else_is_no_code(value: Any) -> None:
    """Numbers, blanks, lower case, other digits, other lengths."""
    assert not codes.is_code(value)


@pytest.mark.parametrize("code", ["0000", "B201", "B299", "E400", "E404", "E501", "B2A0", "B300", "X123"])
def test_what_a_target_answers_is_done_and_healthy(code: str) -> None:
    """Success, denials and unknown codes, E4xx and E501 too: done, a success sample, HTTP 200."""
    rule = codes.of_target(code)
    assert (rule.outcome, rule.sample, codes.http_status(code, "done")) == ("done", "success", 200)


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        ("0000", True),
        ("B201", True),
        ("E500", True),
        ("E999", True),
        ("E501", False),
        ("E400", False),
        ("B2A0", False),
        ("X123", False),
    ],
)
def test_which_codes_are_unknown(code: str, is_known: bool) -> None:
    """Those without a row: passed on and counted; a hub's E9 is not one of them."""
    assert codes.of_target(code).is_known is is_known


@pytest.mark.parametrize(
    ("code", "sample", "http"),
    [("E901", "failure", 504), ("E902", "failure", 502), ("E904", "success", 503), ("E999", "success", 502)],
)
def test_a_hub_behind_this_one(code: str, sample: str, http: int) -> None:
    """Its E901 and E902 are failures, its other E9 codes show that it answers; the status is the table's, else 502."""
    rule = codes.of_target(code)
    assert (rule.is_of_a_hub, rule.outcome, rule.sample) == (True, "unknown", sample)
    assert codes.http_status(code, "unknown") == http


def test_the_hubs_e400_and_a_targets_differ_in_status() -> None:
    """400 if the hub could not take it (not_sent), 200 if a target answered so (done)."""
    assert codes.http_status("E400", "not_sent") == 400
    assert codes.http_status("E400", "done") == 200


def test_accepted_is_202() -> None:
    """Stored for later delivery."""
    assert codes.http_status("0000", "accepted") == 202


def test_no_other_file_of_the_hub_spells_a_code() -> None:
    """One home: outside codes.py no file of the hub writes a code of ours as a literal."""
    root = Path(codes.__file__).parent
    files = [*root.glob("*.py"), *(root / "adapters").glob("*.py"), *(root / "kernel").glob("*.py")]
    assert len(files) > 10
    for file in files:
        if file.name != "codes.py":
            found = re.findall(r"""["'](?:0000|E[459]\d\d)["']""", file.read_text(encoding="utf-8"))
            assert found == [], file
