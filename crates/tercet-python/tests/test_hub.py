"""Models by name, from a local server that behaves as the hub does."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tercet

COMMIT = "c" * 40


class LocalHub(BaseHTTPRequestHandler):
    """One repository, `org/tiny-GGUF`, with one file."""

    contents: bytes = b""
    requests: list[str] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        sha = hashlib.sha256(self.contents).hexdigest()
        if self.path.startswith("/api/models/org/tiny-GGUF/"):
            size = len(self.contents)
            file = {"rfilename": "tiny-Q8_0.gguf", "size": size, "lfs": {"sha256": sha, "size": size}}
            self.answer(200, json.dumps({"sha": COMMIT, "siblings": [file]}).encode())
        elif self.path == f"/org/tiny-GGUF/resolve/{COMMIT}/tiny-Q8_0.gguf":
            first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
            part = self.contents[first : last + 1]
            span = f"bytes {first}-{first + len(part) - 1}/{len(self.contents)}"
            self.answer(206, part, ("Content-Range", span), ("X-Linked-Etag", f'"{sha}"'))
        else:
            self.answer(401, b"{}", ("X-Error-Code", "RepoNotFound"))

    def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[LocalHub]:
    class Own(LocalHub):
        contents = tiny_gguf.read_bytes()
        requests: list[str] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ["HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "SSL_CERT_FILE"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.chdir(tmp_path)
    return Own


def test_a_named_model_is_downloaded_once(hub: type[LocalHub], tiny_gguf: Path) -> None:
    expected = tercet.load(tiny_gguf, device="cpu").generate("Ownership is", 8).text()
    names: list[str | Path] = ["org/tiny-GGUF", "org/tiny-GGUF:Q8_0", "tiny", Path("org/tiny-GGUF")]
    for name in names:
        model = tercet.load(name, device="cpu")
        assert model.generate("Ownership is", 8).text() == expected
    assert sum(path.startswith("/api/") for path in hub.requests) == 1


def test_names_that_lead_nowhere(hub: type[LocalHub], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tercet.ModelError, match="no repository org/none.*HF_TOKEN"):
        tercet.load("org/none")
    hub.requests.clear()
    for path in ["none", "none.gguf", "./org/none", "models/none.gguf", "/org/none"]:
        with pytest.raises(FileNotFoundError, match="none"):
            tercet.load(path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(tercet.ModelError, match="offline mode"):
        tercet.load("org/tiny-GGUF")
    assert hub.requests == []
