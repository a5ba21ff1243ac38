"""Certificates: the one that the server shows, and what its clients trust. Verification is never switched off."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livetables.model.errors import SetupError

HANDSHAKE_ROUNDS = 4  # more than any handshake takes


@dataclass(frozen=True)
class ServerCertificate:
    """A certificate, with those that vouch for it after it, and its key; both are PEM files that fit each other."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        """Check the files; a SetupError names the setting."""
        _readable(self.certificate, "server.tls_certificate")
        _readable(self.key, "server.tls_key")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.certificate)
        except ssl.SSLError:
            raise SetupError(
                f"server.tls_certificate: {self.certificate} has no certificate in PEM form",
                "give the file that begins with -----BEGIN CERTIFICATE-----",
            ) from None
        self._context()

    def flaw(self, host: str | None = None) -> str | None:
        """Why clients will not take it, as one that calls the server by this name finds; None if they will."""
        try:
            self._taken_by_client(host)
        except ssl.SSLCertVerificationError as error:
            return error.verify_message.rstrip(".")
        return None

    def names(self) -> tuple[str, ...]:
        """The hosts that it is for, but for wildcards; none if it is for nobody now."""
        if self.flaw():
            return ()
        shown: Any = self._taken_by_client(None).getpeercert()
        return tuple(name for _, name in shown.get("subjectAltName", ()) if "*" not in name)

    def _taken_by_client(self, host: str | None) -> ssl.SSLObject:
        """A client that trusts this very certificate, after it has shaken hands with the server, in memory."""
        trusting = client_context(self.certificate)
        trusting.check_hostname = host is not None
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
        server = self._context().wrap_bio(to_server, to_client, server_side=True)
        for _ in range(HANDSHAKE_ROUNDS):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        return client

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise SetupError(
                    f"server.tls_key: {self.key} is not the key of the certificate {self.certificate}",
                    "give the two files that were made together; the server's own certificate comes first in its file",
                ) from None
            raise SetupError(
                f"server.tls_key: {self.key} has no private key in PEM form",
                "give the file that begins with -----BEGIN PRIVATE KEY-----",
            ) from None
        return context


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificates in the file, be they an authority's or a server's own; without one, the system's."""
    if ca_file is None:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = "no certificate in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
        raise SetupError(
            f"the certificates to trust in {ca_file} cannot be read: {why}",
            "let --ca or pipeline.server_ca be the file of the authority that made the server's certificate, or of the "
            "certificate itself",
        ) from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own certificate need not vouch for itself
    return context


def trusted_certificates(ca_file: Path) -> bytes:
    """The same certificates in PEM form, for gRPC, which reports nothing about those it cannot read."""
    client_context(ca_file)
    return ca_file.read_bytes()


def _readable(path: Path, setting: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SetupError(
            f"{setting}: {path} cannot be read ({error.strerror})",
            "put the file there, correct the path, or let the user that runs the server read it",
        ) from None


def _no_password() -> str:
    raise SetupError(
        "server.tls_key: the private key is encrypted",
        "decrypt it (`openssl pkey -in key.pem -out plain.pem`) into a file that only the server's user may read",
    )
