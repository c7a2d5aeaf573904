"""Every setting with its default, its unit and the reason for it: frozen records, checked when they are made."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from eaimw.bounds import check_flag, check_integer, check_number, check_seconds, check_some_seconds
from eaimw.errors import SettingsError
from eaimw.policy import MAX_ATTEMPTS, BreakerSettings, RetrySettings

NAME_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
is_name = re.compile(NAME_PATTERN).fullmatch
NAME_ALLOWED = "a string of 1 to 64 of A-Z a-z 0-9 _ . -"

# In messages: in place of what nobody shall read there.
NOT_SHOWN = "..."
# In figures: what belongs to no known target.
NO_TARGET = "-"

MAX_INFLIGHT = 100_000

TIMEOUT = 3.0  # seconds
CONNECT_TIMEOUT = 0.5  # seconds
MIN_CALL = 0.01  # seconds
CODE_FIELD = "code"
INFLIGHT = 10
CORE_URL = "http://127.0.0.1:9201/tx"
CLAIM_URL = "http://127.0.0.1:9202/tx"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a target is, taken apart from its URL."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def parse(cls, url: str, setting: str = "url") -> Endpoint:
        """From `http://` or `https://`; without a path it is /tx. Raises SettingsError."""
        allowed = "an http:// or https:// URL such as http://127.0.0.1:9201/tx"
        if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
            raise SettingsError(setting, url, allowed + ", in printable ASCII without blanks")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise SettingsError(setting, url, allowed + ", with a port from 1 to 65535 if any") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise SettingsError(setting, url, allowed)
        if parts.username is not None or parts.fragment:
            raise SettingsError(setting, url, allowed + ", without user, password or fragment")
        tls = parts.scheme == "https"
        path = parts.path if parts.path not in ("", "/") else "/tx"
        return cls(parts.hostname, port or (443 if tls else 80), path + ("?" + parts.query if parts.query else ""), tls)

    @property
    def authority(self) -> str:
        """The value of the Host header: the port stands only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Address(NamedTuple):
    """Where we listen ourselves. Port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Can programs of this machine alone reach it? A name other than localhost may stand for any address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


ADDRESS_ALLOWED = "HOST:PORT such as 127.0.0.1:9300 or [::1]:9300, the port from 0 (any free one) to 65535"


def parse_address(text: str, setting: str) -> Address:
    """From HOST:PORT, where the host is a name, an IPv4 address or an IPv6 one in brackets. Raises SettingsError."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    is_good = _is_host(host) is not None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            is_good = ipaddress.ip_address(host).version == 6
        except ValueError:
            is_good = False
    if not is_good or not _is_port(port) or int(port) > 65535:
        raise SettingsError(setting, text, ADDRESS_ALLOWED)
    return Address(host, int(port))


_is_host = re.compile(r"[A-Za-z0-9_.-]{1,253}").fullmatch
# Letters that JSON escapes only by their number, if at all: `wire.is_suspect` knows no other spelling of a name.
_is_code_field = re.compile(r"(?!tx_id(\.|$))[\w$@#:-]{1,64}(\.[\w$@#:-]{1,64}){0,4}", re.ASCII).fullmatch
CODE_FIELD_ALLOWED = (
    "1 to 5 names joined by dots, each of 1 to 64 of A-Z a-z 0-9 _ - $ @ # : and the first one not tx_id, "
    "such as header.result_code"
)
_is_port = re.compile(r"[0-9]{1,5}").fullmatch
is_token = re.compile(r"[!-~]{1,1024}").fullmatch
TOKEN_ALLOWED = "a string of 1 to 1,024 printable ASCII characters without blanks"


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The admin plane.

    address: where it listens; one that others than this machine's programs can reach needs a token.
    token: what a request must bring as `Authorization: Bearer`, on loopback too, but for /healthz and /readyz. None:
        nothing is asked for. It is never shown.
    """

    address: Address
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and (not isinstance(self.token, str) or not is_token(self.token)):
            raise SettingsError("the admin token", NOT_SHOWN, TOKEN_ALLOWED)
        if self.token is None and not self.address.is_loopback:
            allowed = "a loopback address such as 127.0.0.1:9300, or have a token, since others can reach it"
            raise SettingsError("admin", str(self.address), allowed)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS for the hub's callers, from PEM files.

    certificate: the server's own, and those between it and its authority after it. key: its private key, unencrypted.
    client_ca: authorities of callers; a caller must show a certificate that one of them signed. None: none is asked.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One target.

    url: where its POST goes.
    timeout: seconds, wall-clock limit of one call from name look-up to the last byte.
    max_inflight: calls in flight; one more is refused at once (E905).
    breaker: when its circuit opens and how long it rests.
    connect_timeout: seconds for name look-up, connection and TLS, within `timeout`; a host that is not there is
        known sooner than a slow answer.
    ca_file: PEM file of the certificate authorities to trust for https; without it the system's.
    code_field: where the code stands in the target's reply object; dots lead into objects within it
        (`header.result_code`). A target with reply formats of its own need not be changed for the hub.
    hold_after_timeout: seconds that a call which has timed out (E901) keeps its place while its connection stays
        open, since the target is still at work on it; 0: the place is free at once.
    min_call: seconds; with less left of the caller's budget no call is begun (E906), since it could not end.
    retry: what is tried again, how often, after which waits, and within which budget.
    expected_rate, expected_latency, expected_p99: calls a second, and seconds of a usual and of a slow one; what
        `eaimw check` reasons with, and nothing else. 0: not known.
    upstream_attempts, downstream_attempts: how often the caller, and the target on its side, try one thing; for
        `eaimw check` too: attempts multiply over layers.
    """

    url: str
    timeout: float = TIMEOUT
    max_inflight: int = INFLIGHT
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    connect_timeout: float = CONNECT_TIMEOUT
    ca_file: str | None = None
    code_field: str = CODE_FIELD
    hold_after_timeout: float = 0.0
    min_call: float = MIN_CALL
    retry: RetrySettings = field(default_factory=RetrySettings)
    expected_rate: float = 0.0
    expected_latency: float = 0.0
    expected_p99: float = 0.0
    upstream_attempts: int = 1
    downstream_attempts: int = 1

    def __post_init__(self) -> None:
        Endpoint.parse(self.url)
        check_some_seconds("timeout", self.timeout)
        check_some_seconds("connect_timeout", self.connect_timeout)
        check_integer("max_inflight", self.max_inflight, 1, MAX_INFLIGHT)
        if self.ca_file is not None and (not isinstance(self.ca_file, str) or not self.ca_file):
            raise SettingsError("ca_file", self.ca_file, "the path of a PEM file of certificates")
        if not isinstance(self.code_field, str) or not _is_code_field(self.code_field):
            raise SettingsError("code_field", self.code_field, CODE_FIELD_ALLOWED)
        check_seconds("hold_after_timeout", self.hold_after_timeout, meaning="0: none")
        check_seconds("min_call", self.min_call)
        check_number("expected_rate", self.expected_rate, 0, 1e6, unit="calls a second", meaning="0: not known")
        for setting in ("expected_latency", "expected_p99"):
            check_seconds(setting, getattr(self, setting), meaning="0: not known")
        for setting in ("upstream_attempts", "downstream_attempts"):
            check_integer(setting, getattr(self, setting), 1, MAX_ATTEMPTS**3)

    @property
    def endpoint(self) -> Endpoint:
        """The URL, taken apart."""
        return Endpoint.parse(self.url)


def is_reached_alike(one: TargetSettings, other: TargetSettings) -> bool:
    """Can the connections of the one be used for the other?"""
    of_transport = ("url", "connect_timeout", "ca_file", "max_inflight", "hold_after_timeout")
    return all(getattr(one, name) == getattr(other, name) for name in of_transport)


@dataclass(frozen=True, slots=True)
class OpSettings:
    """What is known of an operation.

    read: it changes nothing, so that doing it twice, or at two places, does no harm.
    idempotent: done twice with the same content it has the effect of once.
    timeout: seconds for one call of it, where that is less than its target allows; 0: as its target.
    """

    read: bool = False
    idempotent: bool = False
    timeout: float = 0.0

    def __post_init__(self) -> None:
        check_flag("read", self.read)
        check_flag("idempotent", self.idempotent)
        check_seconds("timeout", self.timeout, meaning="0: as its target")

    @property
    def may_repeat(self) -> bool:
        """Does it do no harm to call it twice?"""
        return self.read or self.idempotent


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The whole hub: its targets by name; which target serves an `op` whose transaction names none; ops by name."""

    targets: Mapping[str, TargetSettings]
    routes: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, OpSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.targets, Mapping) or not self.targets:
            raise SettingsError("targets", self.targets, "a mapping from name to target, of at least one")
        for name, target in self.targets.items():
            if not isinstance(target, TargetSettings):
                raise SettingsError(f"the target {name}", target, "a TargetSettings, or where a URL will do, its URL")
            if not isinstance(name, str) or not is_name(name) or name == NO_TARGET:
                raise SettingsError("a target's name", name, f"{NAME_ALLOWED}, and not {NO_TARGET} alone")
        if not isinstance(self.routes, Mapping):
            raise SettingsError("routes", self.routes, "a mapping from op to target")
        for op, name in self.routes.items():
            if not isinstance(op, str) or not is_name(op):
                raise SettingsError("a route's op", op, NAME_ALLOWED)
            if name not in self.targets:
                raise SettingsError(f"the route of {op}", name, f"one of the targets ({', '.join(self.targets)})")
        if not isinstance(self.ops, Mapping):
            raise SettingsError("ops", self.ops, "a mapping from op to OpSettings")
        for op, settings in self.ops.items():
            if not isinstance(op, str) or not is_name(op):
                raise SettingsError("an op", op, NAME_ALLOWED)
            if not isinstance(settings, OpSettings):
                raise SettingsError(f"the op {op}", settings, "an OpSettings")
