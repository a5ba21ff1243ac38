"""The HTTP half of a client: what is asked of the server in JSON."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from livetables.model.errors import LivetablesError, RequestError, SetupError
from livetables.tls import client_context

PROXY_STATUSES = (502, 503, 504)  # of one whose server is away, or does not answer in time
ANSWER_SECONDS_MAX = 30.0  # longer than the server waits for the pipeline to take a control message


class UnreachableError(SetupError):
    """No server answers."""

    may_have_arrived = False  # whether a connection was there, and the server may have done what was asked


@dataclass(frozen=True)
class HttpClient:
    """Client of the server at a URL like http://host:port. What it refuses is a RequestError, with its cure."""

    url: str
    token: str = field(repr=False)
    seconds_max: float = ANSWER_SECONDS_MAX
    ca_file: Path | None = None  # what vouches for an https server; None: the system

    def get(self, path: str, question: Mapping[str, str] | None = None) -> Any:
        return self._answer(urllib.request.Request(self._url(path, question)))  # noqa: S310  made by _url

    def post(self, path: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Any:
        given = {"Content-Type": "application/json", **(headers or {})}
        return self._answer(urllib.request.Request(self._url(path), json.dumps(body).encode(), given))  # noqa: S310

    def rows(self, table: str, *, equal: Mapping[str, object] | None = None, sort: str = "") -> list[dict[str, Any]]:
        """The first rows of a table whose columns have these values; none while there is no such table."""
        filters = [{"column": column, "op": "equals", "value": value} for column, value in (equal or {}).items()]
        question = {"filter": json.dumps(filters) if filters else "", "sort": sort}
        try:
            rows: list[dict[str, Any]] = self.get(f"/api/tables/{table}/rows", question)["rows"]
        except RequestError as error:
            if error.code == "unknown_table":
                return []
            raise
        return rows

    def _url(self, path: str, question: Mapping[str, str] | None = None) -> str:
        asked = {name: value for name, value in (question or {}).items() if value}
        return f"{self.url.rstrip('/')}{path}" + (f"?{urllib.parse.urlencode(asked)}" if asked else "")

    def _answer(self, request: urllib.request.Request) -> Any:
        # Headers are written as Latin-1, and the server reads them as UTF-8.
        request.add_header("Authorization", f"Bearer {self.token}".encode().decode("latin-1"))
        # Without the proxies of the environment: the server is on this machine, or near.
        tls = [urllib.request.HTTPSHandler(context=client_context(self.ca_file))] if self.url[:6] == "https:" else []
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *tls)
        try:
            with opener.open(request, timeout=self.seconds_max) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error.read()) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise SetupError(
                    f"the certificate of the server at {self.url} is not trusted: {reason.verify_message}",
                    "let --ca (`ca_file` in Python) be the file of the authority that made it, or of the certificate "
                    "itself; call the server by a host that the certificate is for (its subjectAltName), and renew it "
                    "if it has expired",
                ) from None
            unreachable = UnreachableError(
                f"no livetables server answers at {self.url}: {reason}",
                "start one with `livetables up` (or `livetables serve`), or run this in the directory of the one that "
                "runs, or give its address (--url)",
            )
            unreachable.may_have_arrived = not isinstance(reason, ConnectionRefusedError | socket.gaierror)
            raise unreachable from None

    def _refusal(self, status: int, body: bytes) -> LivetablesError:
        """What an error means: of livetables itself, of a proxy that cannot reach it, or of who else is there."""
        try:
            fields = json.loads(body)
            return RequestError(fields["code"], fields["problem"], fields["cure"])
        except (ValueError, KeyError, TypeError):
            problem, cure = f"{self.url} answered with status {status}", "check that a livetables server is there"
        if status not in PROXY_STATUSES:
            return RequestError("internal", problem, cure)
        unreachable = UnreachableError(problem, cure)
        unreachable.may_have_arrived = True
        return unreachable
