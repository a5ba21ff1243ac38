"""Certificates and signing keys for tests, made with `openssl`, and `keytool` where a file must be Java's."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
STORE_PASSWORD = "trust-store-password"  # noqa: S105


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a directory: what it signs can be told from what another one does."""

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
