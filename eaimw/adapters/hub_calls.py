"""Calls of a hub that runs, by the commands that use one: blocking, each wait and each size bounded.

No proxy of the environment stands between, as none does between the hub and its targets: a hub is a server of the
user's own network, and HTTP_PROXY is meant for what lies outside. https is checked against the system's authorities
(SSL_CERT_FILE names others), not against the list that comes with requests.

Until a hub has replied, an address may be a wrong one: what fails then is looked into, once, and told as what it is.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import requests
import urllib3
import urllib3.connection
import urllib3.exceptions
from requests.adapters import HTTPAdapter

from eaimw.adapters.hub_door import CONNECT_LIMIT, remedy_of, speaks_tls, turns_away, words_of
from eaimw.adapters.pem import own_faults
from eaimw.codes import is_code
from eaimw.config import Endpoint
from eaimw.errors import CallFailed, NoConnection, NoHub, NoReply, TimedOut, Unusable
from eaimw.wire import MAX_BYTES, on_one_line

MAX_REPLY = 2 * MAX_BYTES  # the target's reply object of at most one, and what the hub says with it
# What ends a request without an answer: requests' own, and what it lets through while a body is read.
_FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
# Nothing has been handed over then.
_UNSENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.LocationValueError,
    requests.exceptions.InvalidURL,
)
# What HTTP says of a request that was not taken, if it is no hub that says so: it has no such address, or no right.
_NOT_TAKEN = (401, 403, 404, 405)


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


class _HttpsConnection(urllib3.connection.HTTPSConnection):
    """Tells what fails up to the end of TLS's handshake, when nothing has been sent, from what fails later."""

    def connect(self) -> None:
        try:
            super().connect()
        except (OSError, urllib3.exceptions.HTTPError) as problem:
            raise urllib3.exceptions.NewConnectionError(self, "") from problem


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class HubCalls:
    """Connections to one hub that are used again; any number of threads up to `at_once` may call at the same time.

    timeout: seconds to wait for the first byte of an answer, and for each further piece. certificate, key: PEM files of
    the caller's own for https, the key in the certificate's file if it has none. Close it when all are back.
    Raises Unusable for a certificate or a key that is no good.
    """

    def __init__(
        self, timeout: float, at_once: int = 1, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        self._timeout = timeout
        self._own = _own_context(certificate, key)
        self._has_certificate = certificate is not None
        self._has_replied = False  # a hub did
        self._looking = threading.Lock()
        self._seen: str | None = None  # what the address was found to be; empty: nothing strange
        self._session = requests.Session()
        self._session.trust_env = False
        paths = ssl.get_default_verify_paths()
        self._session.verify = paths.cafile or paths.capath or True
        self._session.headers.update({"Accept-Encoding": "identity", "User-Agent": "eaimw"})
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=at_once)
        adapter.poolmanager.pool_classes_by_scheme = {"http": urllib3.HTTPConnectionPool, "https": _HttpsPool}
        adapter.poolmanager.connection_pool_kw["ssl_context"] = self._own
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

    def post(self, url: str, raw: bytes) -> HubReply:
        """The hub's reply to one transaction, whatever its code; the hub gets these bytes.

        Raises CallFailed where there is none, which says whether the hub may have seen the transaction; NoHub as long
        as no reply has come and the address shows itself as none of a hub, or as one that wants to be called otherwise.
        """
        try:
            answer = self.request("POST", url, MAX_REPLY, raw, {"Content-Type": "application/json"})
        except CallFailed as problem:
            if self._has_replied:
                raise
            raise self._explained(url, problem) from None
        try:
            said = msgspec.json.decode(answer.body, type=_Said) if len(answer.body) <= MAX_REPLY else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = None
        if said is not None and is_code(said.code):
            self._has_replied = True
            return HubReply(on_one_line(answer.body), said.code, said.target)
        if self._has_replied:
            raise NoReply(f"what came back is no hub's reply (HTTP {answer.status})")
        guess = ": the admin port?" if answer.status in (401, 404) else ""
        words = f"this is no hub's listen address (HTTP {answer.status}{guess})"
        raise NoHub(words, handed_over=answer.status not in _NOT_TAKEN)

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
            links = list(_links(problem))
            raise self._translated(links) from links[-1]

    def close(self) -> None:
        self._session.close()

    def _translated(self, links: list[BaseException]) -> CallFailed:
        if any(isinstance(link, _UNSENT) for link in links):
            return NoConnection(_reason(links), handed_over=False)
        if any(isinstance(link, (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)) for link in links):
            return TimedOut(f"no answer within {self._timeout:g} s", handed_over=True)
        if isinstance(links[-1], http.client.BadStatusLine) and not isinstance(links[-1], ConnectionError):
            return NoReply("what came back is no HTTP")
        return NoConnection(_reason(links), handed_over=True)

    def _explained(self, url: str, problem: CallFailed) -> CallFailed:
        """The problem of a call before any reply: NoHub, if more can be told of it."""
        cause = problem.__cause__
        if not problem.handed_over:
            if not isinstance(cause, ssl.SSLError):
                return problem
            return NoHub(": ".join(filter(None, (str(problem), remedy_of(cause)))), handed_over=False)
        if isinstance(problem, TimedOut):
            return problem
        with self._looking:
            if self._seen is None:
                self._seen = self._look(Endpoint.parse(url))
        if self._seen:
            return NoHub(self._seen, handed_over=False)
        if isinstance(problem, NoReply):
            return NoHub(f"this is no hub's listen address ({problem})", handed_over=True)
        return problem

    def _look(self, endpoint: Endpoint) -> str:
        """Why no transaction can have been taken there, and what to do; empty where one can."""
        if not endpoint.tls:
            return "http:// was given and the hub speaks https" if speaks_tls(endpoint) else ""
        if not turns_away(endpoint, self._own):
            return ""
        if self._has_certificate:
            return "the hub refuses the client certificate: give one of an authority that is in its tls_client_ca"
        return "the hub asks for a client certificate: --cert, --key"


def _own_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """As the calls have it: the system's authorities, and the caller's certificate. Raises Unusable."""
    context = ssl.create_default_context()
    if certificate is None:
        return context
    own = ("--cert, without --key", certificate) if key is None else ("--key", key)
    of_certificate, of_key = own_faults(context, ("--cert", certificate), own, "send")
    if key is None and of_certificate:  # it is one file
        raise Unusable(of_certificate)
    if of_certificate or of_key:
        raise Unusable("; ".join(filter(None, (of_certificate, of_key))))
    return context


def url_of(endpoint: Endpoint) -> str:
    """The endpoint as a URL again, with the path that it has been given."""
    return f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}{endpoint.path}"


def _links(problem: BaseException | None) -> Iterator[BaseException]:
    """The problem and what it came from, the first cause last."""
    while problem is not None:
        yield problem
        wrapped = problem.args[0] if problem.args and isinstance(problem.args[0], BaseException) else None
        problem = problem.__cause__ or problem.__context__ or wrapped


def _reason(links: list[BaseException]) -> str:
    """The first cause in a few words."""
    if isinstance(links[-1], ssl.SSLError):
        return words_of(links[-1])
    for link in reversed(links):
        words = getattr(link, "strerror", None)
        if words:
            return str(words)
    if any(isinstance(link, urllib3.exceptions.ConnectTimeoutError) for link in links):
        return "no connection in time"
    words = str(links[-1]).strip().partition("\n")[0][:200]
    return words or type(links[-1]).__name__
