"""How the page is served: its policy, and that nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from outrider.server.web import mount_playground


def client(dist: Path) -> TestClient:
    app = Starlette()
    mount_playground(app, dist)
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.fixture
def built(tmp_path: Path) -> TestClient:
    dist = tmp_path / "dist"
    dist.mkdir()
    for name in ("index.html", "app.js", "app.css", "favicon.svg", "notes.txt", ".env"):
        (dist / name).write_text(f"contents of {name}")
    (tmp_path / "secret.js").write_text("secret")
    return client(dist)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/assets/app.js", "text/javascript"),
        ("/assets/app.css", "text/css"),
        ("/assets/favicon.svg", "image/svg+xml"),
    ],
)
def test_the_pages_files_come_with_a_strict_policy(built: TestClient, path: str, kind: str) -> None:
    answer = built.get(path)
    assert answer.status_code == 200
    assert answer.text.startswith("contents of ")
    assert answer.headers["content-type"].startswith(kind)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert built.head(path).status_code == 200
    assert built.post(path).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/index.html/",
        "/assets/notes.txt",
        "/assets/.env",
        "/assets/../secret.js",
        "/assets/%2e%2e/secret.js",
        "/assets/..%2fsecret.js",
        "/assets/..%5csecret.js",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "/assets/app.js%00.txt",
        "/assets/app.js/../../secret.js",
        "/secret.js",
    ],
)
def test_nothing_else_is_served(built: TestClient, path: str) -> None:
    answer = built.get(path)
    assert answer.status_code == 404
    assert "contents" not in answer.text
    assert "secret" not in answer.text


def test_without_a_build_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    unbuilt = client(tmp_path / "dist")
    answer = unbuilt.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "make web" in answer.text
    assert unbuilt.get("/assets/app.js").status_code == 404
