"""PEM files of certificates and keys: each that cannot be used is told in a sentence, and nobody is asked for anything.

What a file is for stands before its name in every sentence: `hub.tls_key`, `--cert`.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from pathlib import Path
from typing import NoReturn

# What OpenSSL says of a key that is another certificate's, or of another kind.
_NOT_ITS_KEY = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}


class _Encrypted(Exception):
    pass


def own_faults(
    context: ssl.SSLContext, certificate: tuple[str, Path], key: tuple[str, Path], asker: str
) -> tuple[str, str]:
    """Take certificate and key, each a name and its file, as one's own; what is wrong with either, or empty.

    asker: who would have to ask for a passphrase.
    """
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # tells a file without certificates from one without a key
    faults = authority_fault(trial, *certificate), _unreadable(*key)
    return faults if any(faults) else _load(context, certificate, key, asker)


def authority_fault(context: ssl.SSLContext, name: str, path: Path) -> str:
    """Take the certificates of a file as authorities; why they cannot be, or empty."""
    fault = _unreadable(name, path)
    if fault:
        return fault
    with contextlib.suppress(OSError):
        context.load_verify_locations(path)
        if context.cert_store_stats()["x509"] > 0:
            return ""
    return f"{name}: {path} is no PEM file of certificates"


def _unreadable(name: str, path: Path) -> str:
    """Why the file cannot be read; empty if it can. Opening a pipe must not wait for its writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as problem:
        return f"{name}: {path} cannot be read: {problem.strerror}"
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    return "" if is_file else f"{name}: {path} is not a file"


def _load(context: ssl.SSLContext, certificate: tuple[str, Path], key: tuple[str, Path], asker: str) -> tuple[str, str]:
    def passphrase() -> NoReturn:  # without it OpenSSL would ask the terminal
        raise _Encrypted

    name, path = key
    try:
        context.load_cert_chain(certificate[1], path, passphrase)
    except _Encrypted:
        return "", f"{name}: {path} is encrypted; {asker} asks nobody for a passphrase: give it the key without one"
    except OSError as problem:
        reason = getattr(problem, "reason", None)
        if reason in _NOT_ITS_KEY:
            return "", f"{name}: {path} is not the key of {certificate[1]}"
        if reason is None:
            return "", f"{name}: {path} holds no private key in PEM"
        return f"{certificate[0]}: {certificate[1]} cannot be used: {reason.replace('_', ' ').lower()}", ""
    return "", ""
