"""TLS as a client: whom we trust, who we are, and what went wrong where the two sides do not agree."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from airflow_provider_zkmq.engine.config import Tls
from airflow_provider_zkmq.engine.errors import ConfigError

#: OpenSSL's numbers of what is wrong with a server's certificate.
_NOT_YET, _EXPIRED = 9, 10
_NAMES_ANOTHER: Final = frozenset({62, 64})
#: Alerts by which a server refuses a client's certificate, or the lack of one.
_ALERTS: Final = (
    "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED",
)  # fmt: skip
_HANDSHAKE: Final = "HANDSHAKE_FAILURE"


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that tells what it met: a server refuses our certificate only after the handshake (TLS 1.3)."""

    note: Callable[[OSError], None] | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read; what is wrong is noted on its way."""
        try:
            return super().recv(buflen, flags)
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            if self.note is not None:
                self.note(error)
            raise


def client_context(tls: Tls) -> ssl.SSLContext:
    """How to speak TLS. Raises `ConfigError` for files and passwords that do not fit; never asks on the terminal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks certificates and host names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TlsSocket
    if tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, tls.ca)
    if tls.cert is not None or tls.key is not None:
        _load_identity(context, tls)
    return context


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls ca {ca!r} cannot be used, it must hold certificates in PEM: {_reason(error)}"
        ) from error


def _load_identity(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.cert is None:
        raise ConfigError(f"tls key {tls.key!r} is given without a certificate: give cert, too")
    if tls.key is None and not _holds_key(tls.cert):
        raise ConfigError(f"tls cert {tls.cert!r} is given without its private key: give key, too")
    key, asked = tls.key or tls.cert, False

    def password() -> str:
        nonlocal asked
        asked = True
        return tls.key_password or ""

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(_why_no_identity(tls, key, error, asked=asked)) from error


def _holds_key(path: str) -> bool:
    """Whether a file holds a private key; one that cannot be read is told of where it is used."""
    try:
        return b"PRIVATE KEY-----" in Path(path).read_bytes()
    except OSError:
        return True


def _why_no_identity(tls: Tls, key: str, error: Exception, *, asked: bool) -> str:
    if asked and not tls.key_password:
        return f"tls key {key!r} is encrypted: give key_password, too"
    if asked:
        return f"tls key_password does not open the key {key!r}"
    if "KEY_VALUES_MISMATCH" in _reason(error):
        return f"tls key {key!r} is not that of the certificate {tls.cert!r}"
    return f"tls cert {tls.cert!r} with key {key!r} cannot be used, they must be PEM: {_reason(error)}"


def _reason(error: Any) -> str:
    return str(getattr(error, "reason", None) or error)


def refusal(error: BaseException, tls: Tls) -> str | None:
    """What two sides do not agree about, after "the server "; None for what may pass, such as a lost connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_the_server(error, tls)
    reason = _reason(error) if isinstance(error, ssl.SSLError) else ""
    if any(alert in reason for alert in _ALERTS) or (_HANDSHAKE in reason and tls.cert is None):
        return _of_the_client(reason, tls)
    if "WRONG_VERSION_NUMBER" in reason:
        return "does not speak TLS on this port: name its secure port"
    return None


def _of_the_server(error: ssl.SSLCertVerificationError, tls: Tls) -> str:
    if error.verify_code in _NAMES_ANOTHER:
        return f"has a certificate for another host name: {error.verify_message}"
    if error.verify_code in {_NOT_YET, _EXPIRED}:
        return f"has a certificate that does not hold now: {error.verify_message}"
    trusted = f"the authorities in {tls.ca!r}" if tls.ca else "the system's authorities"
    return f"has a certificate that {trusted} did not sign (tls ca): {error.verify_message}"


def _of_the_client(reason: str, tls: Tls) -> str:
    if tls.cert is None:
        return "demands a client certificate: give tls cert and key"
    return f"refuses the client certificate {tls.cert!r}: {reason.lower().replace('_', ' ')}"
