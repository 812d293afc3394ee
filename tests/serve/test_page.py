"""The page for people: by HTTP as without a script, and in headless Chromium where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.serve.server import ServerProcess, require_extra, serving

require_extra()
httpx = pytest.importorskip("httpx")


@pytest.fixture(scope="module")
def server(shop) -> Iterator[ServerProcess]:
    with serving(shop, "--quiet", "--data", "photos") as running:
        yield running


def text_of(page: str, name: str) -> str:
    found = re.search(rf'id="{name}"[^>]*>([^<]*)', page)
    assert found is not None, page
    return found[1]


def test_the_form_works_without_a_script(server, query_files):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        empty = client.get("/").text
        assert "<form" in empty
        assert "//" not in empty  # nothing from outside
        content = query_files[0].read_bytes()
        files = {"image": ("x.png", content, "image/png")}
        answered = client.post("/", files=files, data={"k": "3", "precision": "0.7"})
        json = client.post("/search", files=files, data={"k": "3", "precision": "0.7"}).json()
        assert answered.status_code == 200
        assert text_of(answered.text, "decision").split(":")[0].split()[0] in ("Answer", "Abstain")
        for near in json["neighbours"]:
            assert near["id"] in answered.text
            assert f"match {100 * near['match_probability']:.1f} %" in answered.text
            picture = client.get(f"/items/{near['row']}")
            assert picture.content.startswith(b"\x89PNG")
        assert answered.text.count("<li>") == 3
        wrong = client.post("/", files={"image": ("x.png", b"<script>alert(1)</script>")})
        assert wrong.status_code == 415
        assert "cannot be read" in text_of(wrong.text, "error")
        unsafe = client.post("/", files=files, data={"k": "<script>alert(1)</script>"})
        assert unsafe.status_code == 400
        assert "<script>alert" not in unsafe.text
        assert "default-src 'none'" in answered.headers["content-security-policy"]


def test_items_are_images_of_the_index_alone(server, shop):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for row in ("-1", "99999", "x", "1.0", "\u0661"):
            response = client.get(f"/items/{row}")
            assert response.status_code == 404
            assert "no item" in response.json()["error"]
