"""Real certificates, made by the openssl command, as an operator makes them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

EVERYWHERE = "IP:127.0.0.1,IP:::1,DNS:localhost"
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


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
