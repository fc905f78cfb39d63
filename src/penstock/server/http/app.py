"""The ASGI application: every route that the connection does not answer itself, made from the table of routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.dashboard.files import Files
from penstock.errors import BadRequest, Internal, InvalidField, PenstockError, Unavailable
from penstock.server.http import openapi
from penstock.server.http.actions import AllRefused, RequestParts, Text, Unhealthy, WithHeaders
from penstock.server.http.routes import PROFILES, ROUTES, Nothing, Route
from penstock.server.http.site import EXPOSED, Site, refusal
from penstock.telemetry.logs import context, log_request
from penstock.telemetry.metrics import Metrics
from penstock.wire import trace
from penstock.wire.json_messages import encode, error_body
from penstock.wire.json_reader import LARGE_BYTES, OneOrMany, Reader

logger: Final = logging.getLogger("penstock.http")
FOR_OPERATORS: Final = ("/metrics",)  # what the admin port has, when there is one, beside the dashboard and profiles


def make_app(site: Site, metrics: Metrics | None = None) -> Starlette:
    """The application."""
    is_public = site.settings.serves == "public"
    routes = (*ROUTES, *PROFILES) if site.settings.profile and not is_public else ROUTES
    if is_public:
        routes = tuple(route for route in routes if route.path not in FOR_OPERATORS)
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    # `/tasks/purge` is looked for before `/tasks/{task_id}`.
    paths = sorted(by_path, key=lambda path: path.count("{"))
    resources: list[Any] = [StarletteRoute(path, Resource(site, metrics, by_path[path])) for path in paths]
    resources.append(StarletteRoute("/openapi.json", _page("application/json", _openapi, routes)))
    resources.append(StarletteRoute("/docs", _page("text/html", _docs, routes)))
    if not is_public:
        resources.append(StarletteRoute("/", _to_dashboard))
        resources.append(StarletteRoute("/ui", _to_dashboard))
        resources.append(StarletteRoute("/ui/{path:path}", _dashboard(site)))
    app = Starlette(
        routes=resources,
        middleware=[Middleware(Envelope, site=site), *_cors(site)],
        exception_handlers={HTTPException: partial(_http_error, site)},
    )
    app.router.redirect_slashes = False
    return app


def _cors(site: Site) -> list[Middleware]:
    origins = site.settings.cors_origins
    if not origins:
        return []
    everything = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    exposed = EXPOSED.decode().split(", ")
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=everything,
            allow_headers=["*"],
            expose_headers=exposed,
        )
    ]


class Envelope:
    """What every response of the application has: a request id, and a line in the log when it took long."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["request_id"]
        clock, status = self._site.broker.clock, 0
        began = clock.monotonic()

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with context(request_id=request_id, protocol="http"):
            await self._app(scope, receive, sent)
            seconds, slow = (clock.monotonic() - began) / 1e6, self._site.settings.slow_request_seconds
            log_request(scope["method"], scope["path"], status, seconds, slow)


class Resource:
    """One path: its methods, and what they do."""

    def __init__(self, site: Site, metrics: Metrics | None, routes: dict[str, Route]) -> None:
        self._site = site
        self._metrics = metrics
        self._routes = routes
        # A field that nobody reads, such as dry_run, must not be ignored where a route takes none.
        self._bodies = {name: _reader(route.body or Nothing) for name, route in routes.items() if name != "GET"}
        self._queries = {name: _reader(route.query) for name, route in routes.items()}
        methods = [*routes, *(["HEAD"] if "GET" in routes else []), "OPTIONS"]
        self._allow = ", ".join(sorted(methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get(method)
        if request.method == "OPTIONS":
            response = Response(status_code=204, headers={"allow": self._allow})
        elif route is None or route.execute is None:
            self._site.broker.meter.refused("", "method_not_allowed")
            response = _refused(405, "method_not_allowed", f"{request.method} is not supported here", self._allow)
        else:
            response = await self._answer(request, route)
        await response(scope, receive, send)

    async def _answer(self, request: Request, route: Route) -> Response:
        try:
            assert route.execute is not None
            parts = await self._decoded(request, route)
            work = route.execute(parts)
            return _response(route, await (_while_there(request, work) if getattr(parts.query, "wait_ms", 0) else work))
        except Unhealthy as unwell:
            return Response(encode(unwell.view), 503, media_type="application/json")
        except AllRefused as refused:
            return _failure(refused.error, refused.view)
        except PenstockError as error:
            self._site.broker.count_rest(error, request.path_params.get("queue", ""))
            return _failure(error)
        except Exception:
            logger.exception("internal error in an HTTP request", extra={"request_id": request.scope["request_id"]})
            return _failure(Internal("internal error in the broker"))

    async def _decoded(self, request: Request, route: Route) -> RequestParts:
        client = request.scope["penstock.client"]
        query = self._query(request, route)
        body = None
        if route.method in self._bodies:
            content = await request.body()
            content = content or b"{}" if route.is_body_optional or route.body is None else content
            read = self._bodies[route.method].read
            # A large body takes long to read, and the loop has others to serve.
            body = await asyncio.to_thread(read, content) if len(content) > LARGE_BYTES else read(content)
        parent = trace.carried(request.headers.get("traceparent"))
        path = {name: unquote(part) for name, part in request.path_params.items()}
        return RequestParts(self._site, client, path, query, body, request.headers, self._metrics, parent)

    def _query(self, request: Request, route: Route) -> Any:
        try:
            pairs = parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
        except ValueError:
            raise BadRequest("query: not UTF-8") from None
        values = dict(pairs)
        if len(values) < len(pairs):
            raise InvalidField("query: a parameter appears twice")
        try:
            return msgspec.convert(values, route.query, strict=False)
        except msgspec.ValidationError as error:
            raise self._queries[route.method].refusal(error, values) from None


async def _while_there(request: Request, work: Awaitable[Any]) -> Any:
    """The result of `work`, which is cancelled when the client goes away."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Unavailable("the client has gone")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(route: Route, result: Any) -> Response:
    if isinstance(result, WithHeaders):
        response = _response(route, result.result)
        response.headers.update(result.headers)
        return response
    if isinstance(result, Text):
        return Response(result.content, media_type=result.media)
    if result is None:
        return Response(status_code=204 if route.media == "application/json" else route.success)
    return Response(encode(result), route.success, media_type="application/json")


def _failure(error: PenstockError, view: Any = None) -> Response:
    status, body, headers = refusal(error)
    if view is not None:
        body = body[:-1] + b"," + encode(view)[1:]
    named = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, named, media_type="application/json")


def _refused(status: int, code: str, message: str, allow: str = "") -> Response:
    error = {"code": code, "message": message, "hint": f"allowed: {allow}" if allow else "see /docs for every route"}
    headers = {"allow": allow} if allow else {}
    return Response(encode({"error": error}), status, headers, media_type="application/json")


async def _http_error(site: Site, request: Request, error: Exception) -> Response:
    """What Starlette refuses itself: above all, paths that do not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    site.broker.meter.refused("", "not_found" if status == 404 else "bad_request")
    if status == 404:
        return _refused(404, "not_found", f"there is nothing at {request.url.path!r}")
    return Response(error_body(BadRequest(str(error))), status, media_type="application/json")


async def _to_dashboard(request: Request) -> Response:
    """Who types the address that the broker prints finds the dashboard. Relative: a proxy may add a prefix."""
    return RedirectResponse("ui/")


def _dashboard(site: Site) -> Callable[[Request], Awaitable[Response]]:
    files = Files(banner=site.settings.banner)

    async def reply(request: Request) -> Response:
        accepted, known = request.headers.get("accept-encoding", ""), request.headers.get("if-none-match", "")
        is_forwarded = request.scope["penstock.is_proxied"] and not site.settings.prefix
        prefix = request.headers.get("x-forwarded-prefix", "") if is_forwarded else site.settings.prefix
        status, content, headers = files.reply(request.path_params["path"], accepted, known, prefix)
        return Response(content, status, headers)

    return reply


Routes = tuple[Route, ...]


@cache
def _openapi(routes: Routes) -> bytes:
    return encode(openapi.document(routes))


@cache
def _docs(routes: Routes) -> bytes:
    return openapi.page(openapi.document(routes))


@cache
def _reader(kind: Any) -> Any:
    return kind if isinstance(kind, OneOrMany) else Reader(kind)


def _page(media: str, content: Callable[[Routes], bytes], routes: Routes) -> Callable[[Request], Awaitable[Response]]:
    """A page that is made for its first request."""

    async def page(request: Request) -> Response:
        return Response(await asyncio.to_thread(content, routes), media_type=media)

    return page
