"""How long to wait before another attempt: by chance, or as the target has asked for."""

from __future__ import annotations

import re
from calendar import timegm
from email.utils import parsedate_to_datetime

# Seconds. A target that wants to be left alone for longer than a day has its clock or its units wrong.
LONGEST = 86_400.0

_is_number = re.compile(r"[0-9]{1,10}").fullmatch


def full_jitter(base: float, cap: float, n: int, u: float) -> float:
    """Seconds before retry n, counted from 0: u times the lesser of cap and base * 2^n. u: uniform in 0 <= u < 1.

    "Full jitter", of the AWS Architecture Blog's "Exponential Backoff And Jitter": of the ways compared there it lets
    those who retry meet each other the least.
    """
    # 2^n soon is no float any more; by then it is beyond any cap.
    return u * min(cap, base * 2.0 ** min(n, 1000))


def retry_after(value: str, now: float) -> float | None:
    """Seconds from now for a Retry-After (RFC 9110, 10.2.3): a number of seconds or an HTTP date. None: senseless.

    now: seconds since the epoch. A date that is over is 0.0.
    """
    value = value.strip()
    if _is_number(value):
        seconds = float(value)
    else:
        try:
            # In two of the three forms of an HTTP date the zone is not written: all are in UTC.
            seconds = max(0.0, timegm(parsedate_to_datetime(value).utctimetuple()) - now)
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return seconds if seconds <= LONGEST else None
