"""Certificates for tests: an authority of one's own, and pairs that it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._root = self._signed(_name("test authority"), self._key.public_key(), is_authority=True)

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(_name("test authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=1))
            .not_valid_after(NOW + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if is_authority:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def pair(self, common: str, password: bytes = b"") -> tuple[bytes, bytes]:
        """Return a certificate and its key as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(_name(common), key.public_key(), is_authority=False)
        sealed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
        return certificate.public_bytes(serialization.Encoding.PEM), secret

    @property
    def pem(self) -> bytes:
        """Return the authority's own certificate."""
        return self._root.public_bytes(serialization.Encoding.PEM)

    def client(self) -> ssl.SSLContext:
        """Return a client's context that trusts this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.pem.decode())
        return context


def write_pair(folder: Path, pair: tuple[bytes, bytes]) -> tuple[str, str]:
    """Write a certificate and its key; return the names of the files."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(pair[0])
    key.write_bytes(pair[1])
    key.chmod(0o600)
    return str(cert), str(key)


def common_name(certificate: bytes) -> str:
    """Return the common name in a certificate in DER."""
    (attribute,) = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)
