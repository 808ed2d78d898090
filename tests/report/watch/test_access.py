"""Who may see the live page."""

from __future__ import annotations

import pytest

from isotherm.report.watch.access import COOKIE, Access, host_name, is_local


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1"])
def test_this_machine_alone_needs_no_token(host: str) -> None:
    access = Access.bound_to(host)
    assert is_local(host)
    assert access.token is None
    assert access.allows_token(None)
    assert access.allows_cookie(None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_elsewhere_there_is_a_token_of_its_own(host: str) -> None:
    access, other = Access.bound_to(host), Access.bound_to(host)
    assert not is_local(host)
    assert access.token is not None
    assert access.token != other.token
    assert len(access.token) >= 32
    assert access.allows_token(access.token)
    assert not access.allows_token(other.token)
    assert not access.allows_token(None)
    assert not access.allows_token("é")


def test_the_cookie_carries_the_token() -> None:
    access = Access.bound_to("0.0.0.0")
    assert access.allows_cookie(f"other=1; {COOKIE}={access.token}")
    assert not access.allows_cookie(f"{COOKIE}=wrong")
    assert not access.allows_cookie(None)
    assert not access.allows_cookie("\x00=;;;")
    assert "HttpOnly" in access.cookie()
    assert "SameSite=Strict" in access.cookie()


@pytest.mark.parametrize("header", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "localhost.:80", "[::1]:8000"])
def test_names_of_this_machine(header: str) -> None:
    assert Access.bound_to("127.0.0.1").allows_host(header)


@pytest.mark.parametrize(
    "header", ["rebound.example", "rebound.example:8000", "", None, "10.0.0.1", "localhost.evil", "[x"]
)
def test_a_name_that_was_made_to_point_here_is_refused(header: str | None) -> None:
    assert not Access.bound_to("127.0.0.1").allows_host(header)


def test_a_server_on_all_addresses_goes_by_any_address_but_by_no_name_of_others() -> None:
    access = Access.bound_to("0.0.0.0")
    assert access.allows_host("192.168.1.5:8000")
    assert access.allows_host("[fe80::1]:8000")
    assert not access.allows_host("rebound.example")


def test_a_name_in_a_header() -> None:
    assert host_name("[::1") == "::1"
    assert host_name("") == ""
