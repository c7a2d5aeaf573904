"""A hub.toml in a folder, read; its faults, if it has some."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaimw.hub_file import HubFile, read_hub_file
from eaimw.toml_file import BadFile

GOOD = """
[hub]
listen = "127.0.0.1:8080"
breaker_log = "logs/breaker.log"
access_log = "logs/access.log"
tls_certificate = "cert.pem"
tls_key = "/etc/hub/key.pem"
tls_client_ca = "ca.pem"
[defaults]
timeout = 4
max_inflight = 7
[defaults.breaker]
reset_timeout = 0
rules = ["ratio"]
window_calls = 50
[targets.CORE]
url = "http://core:8080"
timeout = 2.5
expected_rate = 50
[targets.CORE.breaker]
fail_threshold = 9
rules = ["ratio", "consecutive"]
mode = "shadow"
[targets.CORE.retry]
attempts = 3
budget_min = 0
[targets."CLAIM.NEW"]
url = "https://claim/api?x=1"
ca_file = "ca.pem"
code_field = "header.result_code"
[routes]
PAY = "CORE"
[ops.PAY]
idempotent = true
timeout = 2
[ops."LOOK.UP"]
read = true
idempotent = true
[ops.CANCEL]
"""


def read(folder: Path, text: str) -> HubFile:
    path = folder / "hub.toml"
    path.write_text(text, encoding="utf-8")
    return read_hub_file(path)


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(BadFile) as caught:
        read(folder, text)
    assert all(line.startswith(f"{folder / 'hub.toml'}: ") for line in str(caught.value).splitlines())
    return caught.value.faults
