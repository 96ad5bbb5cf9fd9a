"""An authority and what it has signed, for servers and clients that speak TLS."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


class Certificates:
    """PEM files of an authority, a server on 127.0.0.1, and a client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self.authority = self._write("authority.pem", self._certificate(self._name, self._key))
        self.server, self.server_key = self._signed("server")
        self.client, self.client_key = self._signed("client")
        self.server_chain = folder / "server-chain.pem"
        """Key and certificate in one file, as Java likes it."""
        self.server_chain.write_bytes(self.server_key.read_bytes() + self.server.read_bytes())

    def _signed(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        plain = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return (
            self._write(f"{name}.pem", self._certificate(subject, key)),
            self._write(f"{name}.key", plain),
        )

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> bytes:
        now = datetime.now(UTC)
        itself = subject == self._name
        names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=itself,
            crl_sign=itself,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=itself, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(names, critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path
