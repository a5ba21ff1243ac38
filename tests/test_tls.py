"""Certificates: every fault of their files is an error with its cure, and clients find the same as on a wire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from livetables.model.errors import SetupError
from livetables.tls import ServerCertificate, client_context, trusted_certificates
from tests.support import certificates
from tests.support.certificates import Certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    plain = certificates.self_signed(directory)
    certificates.self_signed(directory, "other")
    certificates.signed_by(certificates.authority(directory), directory, hosts="DNS:tables.example,DNS:*.wild.example")
    certificates.expired(directory)
    certificates.encrypted(plain.key, directory / "encrypted.key")
    (directory / "text.pem").write_text("-----BEGIN nothing")
    (directory / "empty.pem").write_text("")
    return directory


@pytest.mark.parametrize(
    ("certificate", "key", "problem", "cure"),
    [
        ("none.pem", "self.key", "server.tls_certificate: {}/none.pem cannot be read (No such file", "put the file"),
        ("self.pem", "none.key", "server.tls_key: {}/none.key cannot be read (No such file", "put the file there"),
        ("", "self.key", "server.tls_certificate: {} cannot be read (Is a directory)", "put the file there"),
        ("text.pem", "self.key", "server.tls_certificate: {}/text.pem has no certificate", "-----BEGIN CERTIFICATE"),
        ("empty.pem", "self.key", "server.tls_certificate: {}/empty.pem has no certificate", "-----BEGIN CERTIFICATE"),
        ("self.key", "self.key", "server.tls_certificate: {}/self.key has no certificate", "-----BEGIN CERTIFICATE"),
        ("self.pem", "text.pem", "server.tls_key: {}/text.pem has no private key", "-----BEGIN PRIVATE KEY"),
        ("self.pem", "self.pem", "server.tls_key: {}/self.pem has no private key", "-----BEGIN PRIVATE KEY"),
        ("self.pem", "other.key", "server.tls_key: {}/other.key is not the key of the certificate", "made together"),
        ("self.pem", "encrypted.key", "server.tls_key: the private key is encrypted", "openssl pkey"),
    ],
)
def test_files_that_do_not_work_are_errors_with_their_cure(
    made: Path, certificate: str, key: str, problem: str, cure: str
) -> None:
    with pytest.raises(SetupError) as caught:
        ServerCertificate(made / certificate, made / key)
    assert problem.format(made) in caught.value.problem
    assert cure in caught.value.cure


def shown(made: Path, name: str) -> ServerCertificate:
    return ServerCertificate(made / f"{name}.pem", made / f"{name}.key")


def test_a_certificate_has_no_flaw_for_the_hosts_that_it_is_for(made: Path) -> None:
    assert [shown(made, "self").flaw(host) for host in (None, "127.0.0.1", "localhost", "::1")] == [None] * 4
    assert [shown(made, "signed").flaw(host) for host in (None, "tables.example", "a.wild.example")] == [None] * 3


def test_another_host_is_a_flaw(made: Path) -> None:
    assert shown(made, "self").flaw("tables.example") == (
        "Hostname mismatch, certificate is not valid for 'tables.example'"
    )
    assert shown(made, "signed").flaw("127.0.0.1") == ("IP address mismatch, certificate is not valid for '127.0.0.1'")


def test_an_expired_certificate_is_flawed_for_everybody_and_names_nobody(made: Path) -> None:
    assert shown(made, "expired").flaw() == "certificate has expired"
    assert shown(made, "expired").names() == ()


def test_a_certificate_has_its_hosts(made: Path) -> None:
    assert shown(made, "self").names() == ("127.0.0.1", "0:0:0:0:0:0:0:1", "localhost")
    assert shown(made, "signed").names() == ("tables.example",)


@pytest.mark.parametrize("read", [client_context, trusted_certificates])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.pem", "No such file or directory"),
        ("text.pem", "no certificate in PEM form"),
        ("empty.pem", "no certificate in PEM form"),
        ("self.key", "no certificate in PEM form"),
    ],
)
def test_what_cannot_be_trusted_is_an_error_with_its_cure(
    made: Path, read: Callable[[Path], object], name: str, why: str
) -> None:
    with pytest.raises(SetupError, match=f"{name} cannot be read: {why}\n  cure: let --ca or pipeline.server_ca"):
        read(made / name)


def test_certificates_with_comments_in_any_language_are_trusted(made: Path) -> None:
    plain = Certificate(made / "self.pem", made / "self.key")
    commented = made / "commented.pem"
    commented.write_text(f"# Tãcito\n{plain.certificate.read_text()}")
    assert trusted_certificates(commented).endswith(plain.certificate.read_bytes())
