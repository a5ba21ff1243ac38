"""A real Kafka with a listener of every kind: without and with TLS, and to each all mechanisms of SASL.

bootstrap_servers   open to the tests themselves, which make topics and send records there
sasl                SASL_PLAINTEXT: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
sasl_ssl            SASL_SSL: the same
ssl                 SSL: only for clients that show a certificate
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from livetables.local.broker import HOST, Broker, Ports
from livetables.local.ports import free_ports
from tests.support.certificates import STORE_PASSWORD, Authority
from tests.support.token_endpoint import AUDIENCE, TokenEndpoint

USER = "alice"
PASSWORD = "alices-password"  # noqa: S105
CLIENT_ID = "livetables-client"
CLIENT_SECRET = "livetables-client-secret"  # noqa: S105
BROKER_PASSWORD = "broker-store-password"  # noqa: S105
CLIENT_STORE_PASSWORD = "client-store-password"  # noqa: S105

MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
SECURITY = "org.apache.kafka.common.security"
OAUTH = f"{SECURITY}.oauthbearer"
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
MODULES = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{OAUTH}.OAuthBearerLoginModule",
}


class SecureBroker(Broker):
    """The broker of tests, with secured listeners. A client must show a valid token every `reauthenticate_seconds`."""

    def __init__(self, authority: Authority, endpoint: TokenEndpoint, reauthenticate_seconds: int = 0) -> None:
        super().__init__()
        self._authority = authority
        self._endpoint = endpoint
        self._reauthenticate_seconds = reauthenticate_seconds
        self._listeners = dict(zip(("SASL", "SECURE", "MUTUAL"), free_ports(3), strict=True))
        self._key_store = authority.key_store("broker", BROKER_PASSWORD)
        self._trusted = authority.trust_store("PKCS12")

    def start(self) -> None:
        super().start()
        self.set_scram_password(PASSWORD)

    @property
    def sasl(self) -> str:
        return f"{HOST}:{self._listeners['SASL']}"

    @property
    def sasl_ssl(self) -> str:
        return f"{HOST}:{self._listeners['SECURE']}"

    @property
    def ssl(self) -> str:
        return f"{HOST}:{self._listeners['MUTUAL']}"

    def set_scram_password(self, password: str) -> None:
        """Give the user another one, for both mechanisms."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for mechanism in SCRAM.values():
            info = ScramCredentialInfo(mechanism, 4096)
            changed = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, info, password.encode())])
            changed[USER].result(30)

    def _settings(self, data: Path, ports: Ports) -> dict[str, str | int]:
        settings = super()._settings(data, ports)
        protocols = {"SASL": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "MUTUAL": "SSL"}
        settings["listeners"] = ",".join(
            [str(settings["listeners"]), *(f"{name}://{HOST}:{port}" for name, port in self._listeners.items())]
        )
        settings["listener.security.protocol.map"] = ",".join(
            [str(settings["listener.security.protocol.map"]), *(f"{name}:{p}" for name, p in protocols.items())]
        )
        settings |= {
            "ssl.keystore.location": str(self._key_store),
            "ssl.keystore.password": BROKER_PASSWORD,
            "ssl.keystore.type": "PKCS12",
            "ssl.truststore.location": str(self._trusted),
            "ssl.truststore.password": STORE_PASSWORD,
            "ssl.truststore.type": "PKCS12",
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.oauthbearer.jwks.endpoint.url": self._endpoint.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.clock.skew.seconds": 0,
        }
        for listener in ("sasl", "secure"):
            prefix = f"listener.name.{listener}"
            settings |= {
                f"{prefix}.sasl.enabled.mechanisms": MECHANISMS,
                f"{prefix}.plain.sasl.jaas.config": f'{MODULES["PLAIN"]} required user_{USER}="{PASSWORD}";',
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{MODULES['SCRAM-SHA-256']} required;",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{MODULES['SCRAM-SHA-512']} required;",
                f"{prefix}.oauthbearer.sasl.jaas.config": f"{MODULES['OAUTHBEARER']} required;",
                f"{prefix}.oauthbearer.sasl.server.callback.handler.class": (
                    f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
                ),
                f"{prefix}.oauthbearer.connections.max.reauth.ms": 1000 * self._reauthenticate_seconds,
            }
        return settings

    def _jvm_options(self, directory: Path) -> list[str]:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._endpoint.keys_url}"
        return [*super()._jvm_options(directory), allowed]


def login(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """The properties of a client that logs in with a name and a password."""
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{MODULES[mechanism]} required username="{user}" password="{password}";',
    }


def oauth_login(endpoint: str, client_id: str = CLIENT_ID, client_secret: str = CLIENT_SECRET) -> dict[str, str]:
    """The properties of a client that gets its tokens from an endpoint."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": endpoint,
        "sasl.jaas.config": (
            f'{MODULES["OAUTHBEARER"]} required clientId="{client_id}" clientSecret="{client_secret}" scope="kafka";'
        ),
    }


def trusting(authority: Authority, kind: str) -> Mapping[str, str]:
    """The properties of a client that trusts what an authority has signed."""
    if kind == "PEM":
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
    return {
        "ssl.truststore.type": kind,
        "ssl.truststore.location": str(authority.trust_store(kind)),
        "ssl.truststore.password": STORE_PASSWORD,
    }
