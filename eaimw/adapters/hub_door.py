"""What stands at an address that has not given a hub's reply yet: asked for with connections that send no transaction.

A server that asks for a client certificate lets a caller without one through TLS 1.3's handshake, and ends the
connection when the caller may already have sent something. To the caller that looks like a hub that died over its
transaction, as does a request without TLS to a server that speaks nothing else. The transaction alone cannot tell.
"""

from __future__ import annotations

import socket
import ssl

from eaimw.config import Endpoint

CONNECT_LIMIT = 5.0  # seconds; TLS's handshake has as many
# Seconds after a handshake in which a caller is turned away if at all; a hub waits longer for a request.
VERDICT_LIMIT = 1.0
# What OpenSSL makes of an answer that is no TLS.
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"}
_VERIFY_HOST = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
# X509_V_ERR_: no issuer (2, 20), self-signed (18, 19), the first cannot be verified (21).
_VERIFY_AUTHORITY = {2, 18, 19, 20, 21}


def speaks_tls(endpoint: Endpoint) -> bool:
    """Does it shake hands with whoever comes, or refuse as TLS does?"""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(endpoint, anyone):
            return True
    except OSError as problem:
        return "ALERT" in (getattr(problem, "reason", None) or "")


def turns_away(endpoint: Endpoint, own: ssl.SSLContext) -> bool:
    """Is a caller who has sent nothing, and shows the certificate of this context if it has any, sent away at once?"""
    try:
        with _connected(endpoint, own) as connection:
            connection.settimeout(VERDICT_LIMIT)
            try:
                return connection.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:  # an alert, or a reset
                return True
    except OSError:  # it is not there, or TLS fails earlier, which is another story
        return False


def words_of(problem: ssl.SSLError) -> str:
    """Why TLS failed, without what is OpenSSL's own."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        if problem.verify_code in _VERIFY_AUTHORITY:
            return f"its certificate is not trusted ({problem.verify_message})"
        if problem.verify_code in _VERIFY_HOST:
            return f"its certificate is for another host ({problem.verify_message.rstrip('.')})"
        return f"its certificate is no good ({problem.verify_message})"
    if _has_ended(problem):
        return "the connection was ended during TLS"
    if problem.reason in _NO_TLS:
        return "it speaks no TLS"
    return f"TLS failed ({problem.reason.replace('_', ' ').lower()})"


def remedy_of(problem: ssl.SSLError) -> str:
    """What a caller may do about it; it follows the words after a colon or stands alone; empty: nothing is known."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return "name its CA in SSL_CERT_FILE" if problem.verify_code in _VERIFY_AUTHORITY else ""
    if problem.reason in _NO_TLS:
        return "give http:// instead of https://"
    if _has_ended(problem) or "ALERT" in (problem.reason or ""):
        return "if the hub asks for a client certificate, give one that it trusts: --cert, --key"
    return ""


def _has_ended(problem: ssl.SSLError) -> bool:
    return isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) or not problem.reason


def _connected(endpoint: Endpoint, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection whose handshake is over. Raises OSError."""
    plain = socket.create_connection((endpoint.host, endpoint.port), CONNECT_LIMIT)
    try:
        return context.wrap_socket(plain, server_hostname=endpoint.host)
    except BaseException:
        plain.close()
        raise
