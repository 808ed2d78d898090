"""The server of the page: it only reads, answers this machine alone unless told otherwise, and asks nobody anything."""

from __future__ import annotations

import asyncio
import functools
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isotherm.core.json import json_line
from isotherm.errors import UserError
from isotherm.report.watch.access import Access
from isotherm.report.watch.content import Plain
from isotherm.report.watch.live import Live
from isotherm.report.watch.page import POLICY, Asset, assets, combined_state, served_page

SECONDS_BETWEEN_SIGNS = 15.0  # of life, without which a browser or proxy gives up a silent stream
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_LONGEST_NAME = 4_000


def application(
    lives: Sequence[Live],
    access: Access,
    *,
    num_events: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the application that shows one store, or two compared.

    Args:
        lives: the stores.
        access: who may see them.
        num_events: after how many events a stream ends; by default it goes on until the reader leaves.
        is_over: tells that the server is about to end, and streams with it.
    """
    page = _Page(lives, num_events=num_events, is_over=is_over)
    routes = [
        Route("/", page.shell, methods=["GET"]),
        Route("/state", page.state, methods=["GET"]),
        Route("/cell", page.cell, methods=["GET"]),
        Route("/events", page.events, methods=["GET"]),
        Route("/assets/{name}", page.asset, methods=["GET"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(functools.partial(_Guard, access=access))
    return app


class _Page:
    """The answers."""

    def __init__(self, lives: Sequence[Live], *, num_events: int | None, is_over: Callable[[], bool]) -> None:
        self._lives = list(lives)
        self._num_events, self._is_over = num_events, is_over
        self._shell = served_page()

    async def shell(self, request: Request) -> Response:
        return Response(self._shell, media_type="text/html", headers={"cache-control": "no-store"})

    async def state(self, request: Request) -> Response:
        name = request.query_params.get("map")
        content = await run_in_threadpool(combined_state, self._lives, name and name[:_LONGEST_NAME])
        return _json(request, content)

    async def cell(self, request: Request) -> Response:
        query = request.query_params
        try:
            live = self._lives[_index(query.get("store", "0"))]
            place = _index(query["row"]), _index(query["column"])
        except (KeyError, ValueError, IndexError):
            return PlainTextResponse("a cell is named by store, map, row and column", status_code=400)
        try:
            content = await run_in_threadpool(live.cell, query.get("map", ""), *place)
        except UserError as error:
            return PlainTextResponse(str(error), status_code=503)
        if content is None:
            return PlainTextResponse("there is no such cell", status_code=404)
        return _json(request, content)

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        asset = next((one for one in assets().values() if one.name == name), None)
        if asset is None:
            return PlainTextResponse("there is no such file", status_code=404)
        return await run_in_threadpool(_asset, request, asset)

    async def events(self, request: Request) -> Response:
        async def is_gone() -> bool:
            return self._is_over() or await request.is_disconnected()

        stream = _stream(self._lives, self._num_events, is_gone)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _stream(
    lives: Sequence[Live], num_events: int | None, is_gone: Callable[[], Awaitable[bool]]
) -> AsyncIterator[str]:
    """Yield an event for every new version, and a sign of life where there is none."""
    told: list[int] | None = None
    num, silent = 0, 0.0
    yield "retry: 2000\n\n"
    while (num_events is None or num < num_events) and not await is_gone():
        versions = [live.version for live in lives]
        if versions != told:
            told, silent = versions, 0.0
            num += 1
            yield f"event: version\ndata: {json_line(versions)}\n\n"
        elif silent >= SECONDS_BETWEEN_SIGNS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(0.25)
        silent += 0.25


class _Guard:
    """Turns away who may not see the page, before any route; its headers keep a browser from anything else."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._refusal(Request(scope))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        await (answer or self._app)(scope, receive, sending)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that goes no further; None for one that may pass."""
        if not self._access.allows_host(request.headers.get("host")):
            return PlainTextResponse("this server is not called that; use the address that it printed", status_code=421)
        if _is_from_elsewhere(request.headers):
            return PlainTextResponse("this page is not for other sites", status_code=403)
        if self._access.allows_cookie(request.headers.get("cookie")):
            return None
        token = request.query_params.get("token")
        if token is not None and self._access.allows_token(token):
            answer = RedirectResponse("/", status_code=303)  # so that the token leaves the address
            answer.headers["set-cookie"] = self._access.cookie()
            return answer
        return PlainTextResponse("open the address that isotherm watch printed: it has a token", status_code=401)


def _is_from_elsewhere(headers: Headers) -> bool:
    """Tell whether another site asks; following a link to the page itself is fine."""
    site, is_link = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode") == "navigate"
    return site in ("cross-site", "same-site") and not is_link


def _json(request: Request, content: Plain) -> Response:
    return _packed(request, json_line(content).encode(), "application/json", {"cache-control": "no-store"})


def _asset(request: Request, asset: Asset) -> Response:
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, media_type=asset.kind, headers={**headers, "content-encoding": "gzip"})
    return Response(asset.content, media_type=asset.kind, headers=headers)


def _packed(request: Request, content: bytes, kind: str, headers: dict[str, str]) -> Response:
    if len(content) > 10_000 and "gzip" in request.headers.get("accept-encoding", ""):
        packed = gzip.compress(content, 1, mtime=0)
        return Response(packed, media_type=kind, headers={**headers, "content-encoding": "gzip"})
    return Response(content, media_type=kind, headers=headers)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9):
        raise ValueError(text)
    return int(text)
