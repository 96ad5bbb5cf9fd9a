"""The part of the schema registry's HTTP interface that its documentation promises and we use."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

_TYPE = "application/vnd.schemaregistry.v1+json"


class Registry:
    """Subjects with versions of schemas, by id; with `login` it wants user and password.

    Documented: GET /subjects, POST /subjects/S (look up), POST /subjects/S/versions (register),
    GET /subjects/S/versions/V, GET /schemas/ids/N; errors are 401, 40401, 40402, 40403 and 422.
    """

    def __init__(self) -> None:
        self.login: tuple[str, str] | None = None
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[tuple[str, str]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                path = self.path.split("?")[0]
                registry.requests.append((self.command, path))
                if registry.knows(self.headers.get("Authorization", "")):
                    status, answer = registry.answer(self.command, path, body)
                else:
                    status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def knows(self, authorization: str) -> bool:
        if self.login is None:
            return True
        expected = base64.b64encode(":".join(self.login).encode()).decode()
        return authorization == f"Basic {expected}"

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if (method, path) == ("GET", "/subjects"):
            return 200, sorted(self.subjects)
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(match[1])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[number - 1]
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(\w+)", path):
            versions = self.subjects.get(match[1], [])
            if not versions:
                return 404, {"error_code": 40401, "message": "Subject not found"}
            version = len(versions) if match[2] == "latest" else int(match[2])
            return 200, self._version(match[1], version)
        if match := re.fullmatch(r"/subjects/([^/]+)(/versions)?", path):
            return self._take(match[1], body, register=match[2] is not None)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _take(self, subject: str, body: Any, *, register: bool) -> tuple[int, Any]:
        for reference in body.get("references", ()):
            if len(self.subjects.get(reference["subject"], ())) < reference["version"]:
                return 422, {"error_code": 42201, "message": "Invalid schema: no such reference"}
        kept = {
            name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)
        }
        number = self.schemas.index(kept) + 1 if kept in self.schemas else 0
        versions = self.subjects.get(subject, [])
        if not register:
            if not versions:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            if number not in versions:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._version(subject, versions.index(number) + 1)
        if not number:
            self.schemas.append(kept)
            number = len(self.schemas)
        if number not in versions:
            self.subjects.setdefault(subject, []).append(number)
        return 200, {"id": number}

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry that knows nothing yet."""
    made = Registry()
    yield made
    made.close()
