"""The page served: a socket, the server on it, and the threads that read the stores."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

import uvicorn

from isotherm.errors import UserError
from isotherm.report.watch.access import Access
from isotherm.report.watch.live import Live
from isotherm.report.watch.server import application


def serve(lives: Sequence[Live], *, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page until it is interrupted.

    Args:
        lives: the stores to show.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        tell: called with the page's address once it can be opened.
    """
    access = Access.bound_to(host)
    servers: list[uvicorn.Server] = []
    with _listening(host, port) as listener:
        config = uvicorn.Config(
            application(lives, access, is_over=lambda: any(server.should_exit for server in servers)),
            log_level="critical",
            access_log=False,  # addresses may hold the token
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        servers.append(uvicorn.Server(config))
        for live in lives:
            live.start()
        try:
            tell(address(host, listener.getsockname()[1], access.token))
            with contextlib.suppress(KeyboardInterrupt):
                servers[0].run(sockets=[listener])
        finally:
            for live in lives:
                live.close()


def address(host: str, port: int, token: str | None) -> str:
    """Return what to open in a browser.

    >>> address("0.0.0.0", 8000, "abc").startswith("http://")
    True
    >>> address("::1", 8000, None)
    'http://[::1]:8000/'
    """
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    place = f"[{name}]" if ":" in name else name
    return f"http://{place}:{port}/" + ("" if token is None else f"?token={token}")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise UserError(
            f"the page cannot be served on {host}, port {port}: {error.strerror or error}; choose another with --port, "
            "or --port 0 for a free one"
        ) from error
    return listener
