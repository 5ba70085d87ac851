"""Certificates made for one test: an authority, servers, clients. Owns nothing else; valid for a day."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    """The files of a certificate and of its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(self._name, self._name, self._key).add_extension(constraint, critical=True)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self.cert = folder / f"{name}.pem"
        self.cert.write_bytes(_pem(builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())))

    def sign(self, name: str, *hosts: str) -> Pair:
        """A certificate for hosts, names or addresses; none for a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.touch(0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def serving(self, pair: Pair, *, clients_too: bool = False) -> ssl.SSLContext:
        """What a server needs; with `clients_too` it wants a certificate of this authority from its clients."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.cert))
        context.load_cert_chain(pair.cert, pair.key)
        context.verify_mode = ssl.CERT_REQUIRED if clients_too else ssl.CERT_NONE
        return context


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
