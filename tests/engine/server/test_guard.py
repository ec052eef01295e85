import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from engine.server.guard import Guard
from engine.server.settings import ServerSettings
from tests.engine.server.fakes import CHAT, HELLO, stand

BODY = {"messages": HELLO, "max_tokens": 1}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:7117", 200),
        ("localhost:80", 200),
        ("LOCALHOST", 200),
        ("[::1]:7117", 200),
        ("spark.local:7117", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
    ],
)
def test_only_names_of_this_endpoint_are_answered(host, status):
    with stand(allowed_hosts=("Spark.local",)) as s:
        assert s.post(CHAT, BODY, headers={"host": host}).status_code == status


def test_the_host_check_can_be_off():
    with stand(check_host=False) as s:
        assert s.post(CHAT, BODY, headers={"host": "anything"}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://[::1]:1", 200),
        ("https://chat.example", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("file://localhost", 403),
        ("http://[bad", 403),
    ],
)
def test_only_loopback_pages_may_ask(origin, status):
    with stand(allowed_origins=("https://chat.example/",)) as s:
        response = s.post(CHAT, BODY, headers={"origin": origin})
        assert response.status_code == status
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == (origin if status == 200 else None)
        if status == 200:
            assert response.headers["vary"] == "Origin"


def test_preflights_are_answered_for_loopback_only():
    with stand(api_key="secret") as s:
        headers = {
            "origin": "http://localhost:3000",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        response = s.call("OPTIONS", CHAT, headers=headers)
        assert response.status_code == 204
        assert response.headers["access-control-allow-headers"] == "authorization,content-type"
        refused = s.call("OPTIONS", CHAT, headers=headers | {"origin": "https://evil.example"})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer sécret".encode()}, 401),
        ({"authorization": "Bearer secret"}, 200),
        ({"x-api-key": "secret"}, 200),
    ],
)
def test_the_key_is_asked_for_where_one_is_set(headers, status):
    with stand(api_key="secret") as s:
        response = s.post(CHAT, BODY, headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["type"] == "authentication_error"
        assert s.call("GET", "/health").status_code == 200
        assert s.call("GET", "/v1/models").status_code == 401


def test_keys_may_change_and_there_may_be_several():
    keys = ["one", "two"]
    guard = Guard(PlainTextResponse("ok"), ServerSettings(api_key="other"), keys=lambda: keys)
    client = TestClient(guard, base_url="http://localhost")
    statuses = [
        client.get("/", headers={"x-api-key": key}).status_code for key in ("one", "two", "three", "other")
    ]
    assert statuses == [200, 200, 401, 401]
    keys.clear()
    assert client.get("/").status_code == 200
    client.close()
