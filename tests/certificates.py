"""Certificates for tests: authorities, and what they sign. Made anew for each run, and good for a day."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Pem:
    """Paths to a certificate and its private key."""

    cert: str
    key: str


class Authority:
    """Signs certificates, which it writes into a folder with its own (``ca``)."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(True, None), critical=True
        )
        self.ca = str(folder / f"{name}.pem")
        Path(self.ca).write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *hosts: str, password: str | None = None, days: int = 1) -> Pem:
        """A certificate for these hosts, or for a client; the key encrypted where there is a password."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key, days)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False
            )
        signed = builder.sign(self._key, hashes.SHA256())
        made = Pem(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(made.cert).write_bytes(_pem(signed))
        closed = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        Path(made.key).write_bytes(key.private_bytes(encoding, form, closed))
        return made


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    begin = now - dt.timedelta(days=2)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
