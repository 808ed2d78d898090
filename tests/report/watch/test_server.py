"""The server of the live page: what it answers, and whom it turns away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers_watch import HOSTILE, failing, make_store, put, small_plan

pytest.importorskip("starlette", reason='the live page needs pip install "isotherm[watch]"')
pytest.importorskip("httpx", reason="Starlette's test client needs httpx")

from starlette.testclient import TestClient

from isotherm.report.watch.access import COOKIE, Access
from isotherm.report.watch.live import Live
from isotherm.report.watch.server import application
from isotherm.running.store import Store


@pytest.fixture
def live(tmp_path: Path) -> Live:
    make_store(tmp_path / "a.sqlite", small_plan(name=HOSTILE), question=HOSTILE, num=20)
    live = Live(path=tmp_path / "a.sqlite")
    live.read()
    return live


def client_of(live: Live, host: str = "127.0.0.1", *, num_events: int | None = 1) -> tuple[TestClient, Access]:
    access = Access.bound_to(host)
    app = application([live], access, num_events=num_events)
    return TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False), access


@pytest.fixture
def client(live: Live) -> Iterator[TestClient]:
    with client_of(live)[0] as found:
        yield found


def test_the_page_has_what_it_needs_from_this_server_alone(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    found = re.findall(r'(?:src|href|data-plotly)="([^"]+)"', page.text)
    own = [name for name in found if name.startswith("assets/")]
    assert len(own) == 3
    assert {name for name in found if name not in own} <= {"#map", "data:,"}
    for name in own:
        asset = client.get(f"/{name}")
        assert asset.status_code == 200
        assert "immutable" in asset.headers["cache-control"]
        assert asset.headers["content-encoding"] == "gzip"
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_a_reader_without_compression_gets_the_same_file(client: TestClient) -> None:
    (name,) = re.findall(r'href="(assets/[^"]+)"', client.get("/").text)
    plain = client.get(f"/{name}", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == client.get(f"/{name}").content


def test_every_answer_has_a_strict_policy(client: TestClient) -> None:
    for path in ("/", "/state", "/nothing", "/cell"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_state_and_cells_are_json(client: TestClient, live: Live) -> None:
    state = client.get("/state").json()
    assert state["counts"]["finished"] == live.state()["counts"]["finished"]
    name = state["map"]["id"]
    assert client.get("/state", params={"map": name}).json()["map"]["id"] == name
    cell = client.get("/cell", params={"map": name, "row": 0, "column": 2, "store": 0})
    assert cell.json()["num_seeds"] == 3
    assert cell.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?map=x&row=0&column=0", 404),
        ("?map=x&row=-1&column=0", 400),
        ("?map=x&row=99999999999999999999&column=0", 400),
        ("?map=x&row=0&column=0&store=5", 400),
        ("?map=x&row=²&column=0", 400),
    ],
)
def test_cells_that_there_are_not(client: TestClient, query: str, status: int) -> None:
    assert client.get(f"/cell{query}").status_code == status


def test_a_cell_of_a_store_that_went_away_is_an_error_in_words(client: TestClient, live: Live) -> None:
    name = live.state()["map"]["id"]
    live.path.unlink()
    answer = client.get("/cell", params={"map": name, "row": 0, "column": 0})
    assert answer.status_code == 503
    assert "no store at" in answer.text


def test_events_tell_of_every_version(live: Live) -> None:
    client, _ = client_of(live, num_events=1)
    with client.stream("GET", "/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join(answer.iter_text())
    assert f"event: version\ndata: [{live.version}]\n\n" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(client: TestClient, live: Live, method: str) -> None:
    before = live.path.read_bytes()
    for path in ("/", "/state", "/cell", "/events"):
        assert client.request(method, path).status_code == 405
    assert live.path.read_bytes() == before


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:8000", "127.0.0.1.evil:8000", "10.0.0.1"])
def test_a_name_that_was_made_to_point_here_gets_nothing(client: TestClient, host: str) -> None:
    for path in ("/", "/state", "/events"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "constant_steps" not in answer.text


def test_another_site_gets_nothing_but_may_link_here(client: TestClient) -> None:
    asking = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get("/state", headers=asking).status_code == 403
    assert client.get("/", headers={**asking, "sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/state", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_elsewhere_a_token_opens_the_page_and_then_a_cookie(live: Live) -> None:
    client, access = client_of(live, "0.0.0.0")
    for path in ("/", "/state", "/events", "/assets/x", "/?token=wrong"):
        assert client.get(path).status_code == 401
    opened = client.get("/", params={"token": access.token})
    assert opened.status_code == 303
    assert opened.headers["location"] == "/"  # the token leaves the address
    assert f"{COOKIE}={access.token}" in opened.headers["set-cookie"]
    assert client.get("/state", headers={"cookie": f"{COOKIE}={access.token}"}).status_code == 200
    assert client.get("/state", headers={"cookie": f"{COOKIE}=wrong"}).status_code == 401


@pytest.mark.parametrize("path", ["/assets/../page.py", "/assets/%2e%2e%2fpage.py", "/assets/watch.js", "/etc/passwd"])
def test_no_other_file_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_names_that_mean_harm_reach_the_page_as_json_alone(client: TestClient, live: Live) -> None:
    with Store.read(live.path) as store:
        assert store.studies()["small"]["question"] == HOSTILE
    assert "onerror" not in client.get("/").text
    state = client.get("/state")
    assert state.headers["content-type"] == "application/json"
    assert "\x1b" not in state.text
    assert state.json()["question"].startswith("<img src=x")


def test_what_is_new_shows_without_a_new_page(client: TestClient, live: Live, tmp_path: Path) -> None:
    before = client.get("/state").json()
    left = make_store(tmp_path / "other.sqlite", small_plan(name=HOSTILE), num=20)
    put(live.path, left[:2], failing)
    live.read()
    after = client.get("/state").json()
    assert after["version"] > before["version"]
    assert after["counts"]["failed"] == 2
