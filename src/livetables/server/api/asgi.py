"""How uvicorn serves here, in the server and in its relays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvicorn
from starlette.types import ASGIApp

from livetables.server.api.http_timeouts import TimedHttpProtocol
from livetables.server.live.protocol import MAX_FRAME_BYTES
from livetables.server.live.websocket import WebSocketProtocol
from livetables.tls import ServerCertificate

GOODBYE_SECONDS = 3


def uvicorn_config(
    app: ASGIApp,
    http: type[asyncio.Protocol] = TimedHttpProtocol,
    certificate: ServerCertificate | None = None,
    proxies: Sequence[str] = (),
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http,
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=None,  # the protocol has heartbeats of its own, and a client may stop reading for a while
        ws_per_message_deflate=False,  # one compression a client would cost more than all the rest
        lifespan="off",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),  # the default is this machine, and an environment variable
        access_log=False,
        log_config=None,  # its log goes where everything goes
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
