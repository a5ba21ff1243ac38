"""The errors of Kafka's Java clients: what each means to the user, and what fixes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from livetables.jvm.java_errors import java_causes
from livetables.model.errors import PassingTopicError, TopicError
from livetables.model.spec import TOPIC_CURE

MAX_SHOWN = 200

REFUSED = (
    "the Kafka broker refuses this client: {cause}",
    "check who logs in by kafka.sasl.jaas.config (user and password, or the client that tokens are for), "
    "kafka.sasl.mechanism and kafka.security.protocol",
)

# What an exception of Java's, or one derived from it, means to the user: the problem and its cure.
MEANINGS: Mapping[str, tuple[str, str]] = {
    "UnknownTopicOrPartitionException": ("topic {topic} does not exist", "create it, or name one that exists"),
    "UnknownTopicIdException": ("topic {topic} does not exist any more", "create it, or name one that exists"),
    "InvalidTopicException": ("{topic} is not a valid topic name", TOPIC_CURE),
    "TopicAuthorizationException": (
        "topic {topic} is not authorised for this client",
        "grant its user Describe and Read on it (on the control topic Write and Create too)",
    ),
    "ClusterAuthorizationException": (
        "topic {topic} is not authorised for this client",
        "grant its user the operation on the cluster, or have the topic created by somebody who may",
    ),
    "LeaderNotAvailableException": ("topic {topic} has a partition without a leader", "start the broker that has it"),
    "TimeoutException": (
        "the Kafka broker at {servers} did not answer about topic {topic} in time",
        "check that it runs and can be reached, and that kafka.bootstrap.servers and kafka.security.protocol fit it",
    ),
    "SaslAuthenticationException": REFUSED,
    "IllegalSaslStateException": REFUSED,
    "UnsupportedSaslMechanismException": REFUSED,
    "SslAuthenticationException": (
        "the Kafka broker and this client do not trust each other: {cause}",
        "check kafka.ssl.truststore.* (whom this client trusts) and kafka.ssl.keystore.* (its own certificate)",
    ),
    "LoginException": ("the login at the Kafka broker cannot begin: {cause}", "fix kafka.sasl.*"),
    "RecordTooLargeException": ("the message is too large for topic {topic}", "send a smaller one"),
    "RetriableException": ("the Kafka broker cannot serve topic {topic} now: {cause}", "look at its log if this lasts"),
}
MISSING = ("UnknownTopicOrPartitionException", "UnknownTopicIdException")
NOT_LET_IN = (
    "SaslAuthenticationException",
    "IllegalSaslStateException",
    "UnsupportedSaslMechanismException",
    "SslAuthenticationException",
    "LoginException",
)
# They may be over when it is tried again, though nobody changes a topic or a setting. Users, certificates and tokens
# are fixed elsewhere, and a client that is not let in knows nothing of any topic.
PASSING = ("LeaderNotAvailableException", "TimeoutException", "RetriableException", *NOT_LET_IN)
NO_TOKEN = (
    "no OAuth token for the Kafka broker: {cause}",
    "check kafka.sasl.oauthbearer.token.endpoint.url, and clientId and clientSecret in kafka.sasl.jaas.config",
)
NOT_KNOWN = ("the Kafka client cannot work on topic {topic}: {cause}", "fix the kafka.* property that this is about")


class MissingTopicError(TopicError):
    """There is no such topic."""


def topic_error(topic: str, class_names: Iterable[str], *, servers: str, cause: str) -> TopicError:
    """The error for an exception of these classes, those of the outermost one first."""
    known = next((name for name in class_names if name in MEANINGS), None)
    problem, cure = MEANINGS[known] if known else NOT_KNOWN
    text = problem.format(topic=shown(topic), servers=servers, cause=cause)
    if known in MISSING:
        return MissingTopicError(text, cure)
    return PassingTopicError(text, cure) if known in PASSING else TopicError(text, cure)


def root_cause(error: Exception) -> str:
    """The message of the root cause, or its class where it has none."""
    *_, root = java_causes(error)
    message = (root.getMessage() or "").strip()
    if " " in message:
        return str(message)
    # Only a path or a host: NoSuchFileException, UnknownHostException.
    kind = re.sub(r"(?<!^)(?=[A-Z])", " ", root.getClass().getSimpleName().removesuffix("Exception")).lower()
    return f"{kind} {message}".strip()


def shown(name: str) -> str:
    """A name as a message may show it, whatever somebody typed."""
    text = json.dumps(name)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
