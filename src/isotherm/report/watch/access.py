"""Who may see the page: names by which this machine may be called, and a token where others can reach it."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

COOKIE = "isotherm_watch"
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The rules of one server.

    A page elsewhere cannot reach this one through a name that it lets point here: the name in a request's Host must be
    one of ours. Bound to another address than this machine's own, the server also asks for a token, which comes once in
    the address and then in a cookie.
    """

    host: str
    token: str | None
    names: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def bound_to(cls, host: str) -> Access:
        """Return the rules for a server bound to this address."""
        if is_local(host):
            return cls(host=host, token=None, names=_LOCAL)
        own = {host, socket.gethostname(), socket.getfqdn()}
        return cls(host=host, token=secrets.token_urlsafe(24), names=_LOCAL | {name.lower() for name in own})

    def allows_host(self, header: str | None) -> bool:
        """Tell whether a Host header names this server; an address in digits does where it listens on all of them.

        >>> access = Access.bound_to("127.0.0.1")
        >>> access.allows_host("localhost:8000"), access.allows_host("rebound.example:8000")
        (True, False)
        """
        name = host_name(header or "")
        if name in self.names:
            return True
        return self.host in ("0.0.0.0", "::") and _is_address(name)  # noqa: S104 - compared, not bound

    def allows_token(self, token: str | None) -> bool:
        """Tell whether this is the token, or none is needed."""
        if self.token is None:
            return True
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def allows_cookie(self, header: str | None) -> bool:
        """Tell whether a Cookie header has the token, or none is needed."""
        if self.token is None:
            return True
        try:
            morsel = SimpleCookie(header or "").get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and self.allows_token(morsel.value)

    def cookie(self) -> str:
        """Return the Set-Cookie header that keeps the token; no script and no other site gets it."""
        return f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"


def is_local(host: str) -> bool:
    """Tell whether only this machine reaches an address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
    (True, True, False)
    """
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> host_name("[::1]:8000"), host_name("LocalHost:80"), host_name("10.0.0.1")
    ('::1', 'localhost', '10.0.0.1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
