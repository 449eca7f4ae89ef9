"""Who may talk to the server: requests for this host, and from pages of this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class SameOriginMiddleware:
    """Refuses requests that a page of another site made; those without an Origin header pass."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self.app = app
        self.allowed_hosts = tuple(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] in ("http", "websocket") else None
        if origin is None or self._is_ours(origin):
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Requests from other sites are refused.", 403)(scope, receive, send)

    def _is_ours(self, origin: str) -> bool:
        return "*" in self.allowed_hosts or host_of(origin) in self.allowed_hosts


def host_of(origin: str) -> str:
    """The host of an origin, an IPv6 address in brackets; empty for ``null`` and nonsense."""
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return ""
    return f"[{host}]" if ":" in host else host


def allowed_hosts(server_name: str) -> list[str]:
    """Names under which the page may be asked for.

    These are the local ones, the server's own, those of ``MIXDESK_HOSTS`` (separated by commas) and that of a
    Space.  A server that listens on every address cannot know its names: it accepts those that were given.
    """
    named = [*os.environ.get("MIXDESK_HOSTS", "").split(","), os.environ.get("SPACE_HOST", "")]
    own = [] if server_name in ("0.0.0.0", "::") else [server_name]
    return list(dict.fromkeys(host.strip() for host in (*LOCAL_HOSTS, *own, *named) if host.strip()))


def middleware(hosts: Sequence[str]) -> list[Middleware]:
    """What stands before every route."""
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        Middleware(SameOriginMiddleware, allowed_hosts=hosts),
    ]
