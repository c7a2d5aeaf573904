"""Calls of a hub that runs, by the commands that use one: blocking, each wait and each size bounded.

No proxy of the environment stands between, as none does between the hub and its targets: a hub is a server of the
user's own network, and HTTP_PROXY is meant for what lies outside. https is checked against the system's authorities
(SSL_CERT_FILE names others), not against the list that comes with requests.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import requests
import urllib3.exceptions
from requests.adapters import HTTPAdapter

from eaimw.codes import is_code
from eaimw.config import Endpoint
from eaimw.errors import CallFailed, NoConnection, NoReply, TimedOut
from eaimw.wire import MAX_BYTES, on_one_line

CONNECT_LIMIT = 5.0  # seconds
MAX_REPLY = 2 * MAX_BYTES  # the target's reply object of at most one, and what the hub says with it
# What ends a request without an answer: requests' own, and what it lets through while a body is read.
_FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
# Nothing has been handed over then.
_UNSENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    ssl.SSLCertVerificationError,
    urllib3.exceptions.LocationValueError,
    requests.exceptions.InvalidURL,
)


class Answer(NamedTuple):
    """A whole answer. body: at most as long as was asked for, and one byte more if there was more."""

    status: int
    body: bytes


class HubReply(NamedTuple):
    """The hub's reply to one transaction. line: as it came, on one line."""

    line: bytes
    code: str
    target: str | None


class _Said(msgspec.Struct, gc=False):
    """What of a reply is looked at."""

    code: str
    target: str | None = None


class HubCalls:
    """Connections to one hub that are used again; any number of threads up to `at_once` may call at the same time.

    timeout: seconds to wait for the first byte of an answer, and for each further piece. Close it when all are back.
    """

    def __init__(self, timeout: float, at_once: int = 1) -> None:
        self._timeout = timeout
        self._session = requests.Session()
        self._session.trust_env = False
        paths = ssl.get_default_verify_paths()
        self._session.verify = paths.cafile or paths.capath or True
        self._session.headers.update({"Accept-Encoding": "identity", "User-Agent": "eaimw"})
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=at_once))

    def post(self, url: str, raw: bytes) -> HubReply:
        """The hub's reply to one transaction, whatever its code; the hub gets these bytes.

        Raises CallFailed where there is none, which says whether the hub may have seen the transaction.
        """
        answer = self.request("POST", url, MAX_REPLY, raw, {"Content-Type": "application/json"})
        try:
            said = msgspec.json.decode(answer.body, type=_Said) if len(answer.body) <= MAX_REPLY else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = None
        if said is None or not is_code(said.code):
            raise NoReply(f"what came back is no hub's reply (HTTP {answer.status})")
        return HubReply(on_one_line(answer.body), said.code, said.target)

    def request(
        self, method: str, url: str, limit: int, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request, never sent again, never redirected. Raises CallFailed."""
        try:
            with self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                timeout=(min(CONNECT_LIMIT, self._timeout), self._timeout),
                stream=True,
                allow_redirects=False,
            ) as response:
                body = bytearray()
                # To the end, at which a reply that was cut short shows and the connection is free for the next one.
                while len(body) <= limit and (piece := response.raw.read(limit + 1 - len(body))):
                    body += piece
                return Answer(response.status_code, bytes(body))
        except _FAILURES as problem:
            raise self._translated(problem) from None

    def close(self) -> None:
        self._session.close()

    def _translated(self, problem: Exception) -> CallFailed:
        links = list(_links(problem))
        if any(isinstance(link, _UNSENT) for link in links):
            return NoConnection(_reason(links), handed_over=False)
        if any(isinstance(link, (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)) for link in links):
            return TimedOut(f"no answer within {self._timeout:g} s", handed_over=True)
        return NoConnection(_reason(links), handed_over=True)


def url_of(endpoint: Endpoint) -> str:
    """The endpoint as a URL again, with the path that it has been given."""
    return f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}{endpoint.path}"


def _links(problem: BaseException | None) -> Iterator[BaseException]:
    """The problem and what it came from, the first cause last."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _reason(links: list[BaseException]) -> str:
    """The first cause in a few words."""
    for link in reversed(links):
        words = getattr(link, "verify_message", None) or getattr(link, "strerror", None)
        if words:
            return str(words)
    if any(isinstance(link, urllib3.exceptions.ConnectTimeoutError) for link in links):
        return "no connection in time"
    words = str(links[-1]).strip().partition("\n")[0][:200]
    return words or type(links[-1]).__name__
