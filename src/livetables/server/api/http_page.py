"""The web page: its files, or a page that says what there is instead."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from livetables.server.api.gate import is_locked
from livetables.server.api.services import Services

PAGE_CACHING = "no-cache"  # a browser that knew an older page asks whether it is still the same
WELCOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>livetables</title>
<style>body { font: 1rem/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 42rem; padding: 0 1rem }
pre { overflow-x: auto }</style>
<h1>livetables</h1>
<p>This server runs. Its web app is not installed here, but all its tables are to be had:</p>
<ul>
<li><a href="/healthz">/healthz</a>: whether it runs; <a href="/readyz">/readyz</a>: whether it has tables</li>
<li><a href="/openapi.json">/openapi.json</a>: everything that can be asked for</li>
</ul>
<p>Log in with the key that the server was started with:</p>
<pre>curl -H "Authorization: Bearer $KEY" http://localhost:PORT/api/tables
curl -H "Authorization: Bearer $KEY" -H "Accept: text/csv" http://localhost:PORT/api/tables/final_ui/rows</pre>
</html>
"""


class _Page(StaticFiles):
    """The web app's files."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = PAGE_CACHING
        return response


def page(services: Services, missing: ASGIApp) -> ASGIApp:
    """What answers on every path without an operation: the web app's files, or a page that says what there is."""
    directory = services.web_directory
    files = _Page(directory=directory, html=True) if directory and directory.is_dir() else None

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_locked(scope):
            await missing(scope, receive, send)
        elif files:
            await files(scope, receive, send)
        elif scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            await HTMLResponse(WELCOME)(scope, receive, send)
        else:
            await missing(scope, receive, send)

    return answer
