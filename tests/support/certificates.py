"""Real certificates and keys, made by the openssl command as an operator makes them; for Java's stores, by keytool."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

EVERYWHERE = "IP:127.0.0.1,IP:::1,DNS:localhost"
HOST = "127.0.0.1"
STORE_PASSWORD = "trust-store-password"  # noqa: S105
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """What makes a server show it."""
        return {
            "LIVETABLES_SERVER_TLS_CERTIFICATE": str(self.certificate),
            "LIVETABLES_SERVER_TLS_KEY": str(self.key),
        }


def self_signed(directory: Path, name: str = "self", hosts: str = EVERYWHERE) -> Certificate:
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    _openssl("req", "-x509", *NEW_KEY, "-keyout", made.key, "-out", made.certificate, "-days", "2", *_subject(hosts))
    return made


def authority(directory: Path, name: str = "ca") -> Certificate:
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    subject = ["-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"]
    _openssl("req", "-x509", *NEW_KEY, "-keyout", made.key, "-out", made.certificate, "-days", "2", *subject)
    return made


def signed_by(issuer: Certificate, directory: Path, name: str = "signed", hosts: str = EVERYWHERE) -> Certificate:
    made, request = Certificate(directory / f"{name}.pem", directory / f"{name}.key"), directory / f"{name}.csr"
    _openssl("req", *NEW_KEY, "-keyout", made.key, "-out", request, *_subject(hosts))
    by: list[str | Path] = ["-CA", issuer.certificate, "-CAkey", issuer.key, "-days", "2"]
    _openssl("x509", "-req", "-in", request, *by, "-copy_extensions", "copy", "-out", made.certificate)
    return made


def expired(directory: Path, name: str = "expired") -> Certificate:
    made, request = Certificate(directory / f"{name}.pem", directory / f"{name}.key"), directory / f"{name}.csr"
    _openssl("req", *NEW_KEY, "-keyout", made.key, "-out", request, *_subject(EVERYWHERE))
    by: list[str | Path] = ["-signkey", made.key, "-days", "-1"]
    _openssl("x509", "-req", "-in", request, *by, "-copy_extensions", "copy", "-out", made.certificate)
    return made


def encrypted(key: Path, to: Path) -> Path:
    _openssl("pkey", "-in", key, "-aes128", "-passout", "pass:s3cret", "-out", to)
    return to


def _subject(hosts: str) -> list[str]:
    return ["-subj", "/CN=livetables", "-addext", f"subjectAltName={hosts}"]


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a directory: what it signs differs from what another one does."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> Authority:
        directory.mkdir()
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=authority",
                 "-keyout", directory / "authority.key", "-out", directory / "authority.pem")  # fmt: skip
        return cls(directory)

    @property
    def certificate(self) -> Path:
        """What clients trust, as PEM."""
        return self.directory / "authority.pem"

    def trust_store(self, kind: str) -> Path:
        """What clients trust, in a store of Java's: JKS or PKCS12."""
        store = self.directory / f"trusted.{kind.lower()}"
        if not store.exists():
            _run("keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", self.certificate,
                 "-keystore", store, "-storetype", kind, "-storepass", STORE_PASSWORD)  # fmt: skip
        return store

    def key_store(self, name: str, password: str) -> Path:
        """A key of somebody on this machine with its certificate, as PKCS12."""
        key, request, signed = (self.directory / f"{name}.{suffix}" for suffix in ("key", "csr", "pem"))
        extensions = self.directory / f"{name}.extensions"
        extensions.write_text(f"subjectAltName=IP:{HOST}\n")
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl("x509", "-req", "-days", "30", "-in", request, "-CA", self.certificate,
                 "-CAkey", self.directory / "authority.key", "-CAcreateserial",
                 "-extfile", extensions, "-out", signed)  # fmt: skip
        store = self.directory / f"{name}.p12"
        _openssl("pkcs12", "-export", "-in", signed, "-inkey", key, "-name", name,
                 "-passout", f"pass:{password}", "-out", store)  # fmt: skip
        return store


def signing_key(path: Path) -> Path:
    """A new RSA key, as PEM."""
    _openssl("genrsa", "-out", path, "2048")
    return path


def modulus(key: Path) -> int:
    """The public half of an RSA key; its exponent is 65537."""
    return int(_openssl("rsa", "-in", key, "-noout", "-modulus").partition(b"=")[2], 16)


def signed(key: Path, content: bytes) -> bytes:
    """The RS256 signature of a content."""
    return _openssl("dgst", "-sha256", "-sign", key, content=content)


def _openssl(*arguments: object, content: bytes | None = None) -> bytes:
    return _run("openssl", *arguments, content=content)


def _run(*command: object, content: bytes | None = None) -> bytes:
    done = subprocess.run([str(part) for part in command], input=content, capture_output=True, check=False)
    assert done.returncode == 0, f"{command[0]} {command[1]}: {(done.stderr or done.stdout).decode()}"
    return done.stdout
