"""Who may talk to the server: requests for this host, and from pages of this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from components.demo import FOLDER
from merger import Policy

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class SameOriginMiddleware:
    """Refuses requests that a page of another site made; those without an Origin header pass.

    Args:
        app: what comes after it.
        public_hosts: names of this server as a proxy's visitors see it; their origins pass, too.
    """

    def __init__(self, app: ASGIApp, public_hosts: Sequence[str] = ()) -> None:
        self.app = app
        self.public_hosts = tuple(public_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else Headers()
        origin = headers.get("origin")
        if origin is None or self._is_ours(origin, headers.get("host", "")):
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Requests from other sites are refused.", 403)(scope, receive, send)

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return bool(parts.netloc) and (parts.netloc == host or parts.hostname in self.public_hosts)


def middleware(server_name: str) -> list[Middleware]:
    """What stands before every route.

    A page on one's own machine answers only to the names it was given, so that no other site can reach it by
    pointing a name of its own at this address.  A Space stands behind a proxy that sees to it.

    Args:
        server_name: address that the server listens on.
    """
    public = public_hosts()
    hosts = (
        ["*"] if is_hosted() else [*LOCAL_HOSTS, *([] if server_name in ("0.0.0.0", "::") else [server_name]), *public]
    )
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        Middleware(SameOriginMiddleware, public_hosts=public),
    ]


def closed() -> list[Route]:
    """Gradio's own ways in that the page does not use: nobody fills the disk with uploads."""

    async def refuse(request: Request) -> Response:
        return PlainTextResponse("Not found.", 404)

    return [Route("/gradio_api/upload", refuse, methods=["POST"])]


def public_hosts() -> list[str]:
    """More names of this server: ``MIXDESK_HOSTS`` (separated by commas), and a Space's."""
    named = [*os.environ.get("MIXDESK_HOSTS", "").split(","), os.environ.get("SPACE_HOST", "")]
    return [host.strip() for host in named if host.strip()]


def policy() -> Policy:
    """What may be merged here: anything on one's own machine, the demo's models on a public page."""
    return Policy.hosted([FOLDER]) if is_hosted() else Policy.default()


def is_hosted() -> bool:
    """Whether this is a public page, where visitors may see nothing of the machine."""
    return "SPACE_ID" in os.environ
