"""A Hub on this machine: repositories of small files, over the requests that huggingface_hub makes of them."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

# Each line: what to call; its result, or the error, becomes a line of JSON.
_CALLS = """
import importlib, json, sys
import cpc
share = lambda *given, **named: importlib.import_module("cpc.interop.share").share(*given, **named)
download = lambda *given, **named: importlib.import_module("cpc.interop.hub_datasets").download_dataset(*given, **named)
for line in sys.stdin:
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        found = eval(line)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    sys.stdout = stdout
    print(json.dumps(str(found)), flush=True)
"""


class Hub(ThreadingHTTPServer):
    """Repositories, each a list of commits: what every file holds, by name. `datasets/ORG/NAME` holds a dataset."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.requests: list[str] = []
        self.breaks_off = ""  # half of a file of this name comes
        self.address = f"http://127.0.0.1:{self.server_port}"

    def commit(self, repository: str, number: int) -> str:
        return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()

    def number(self, repository: str, revision: str) -> int | None:
        commits = [self.commit(repository, number) for number in range(len(self.repositories[repository]))]
        if revision == "main":
            return len(commits) - 1
        return commits.index(revision) if revision in commits else None

    def call(self, lines: list[str], folder: Path, **environment: str) -> list[str]:
        """What these expressions give in a new process, whose Hub this is, run from `folder`."""
        own = {"HF_ENDPOINT": self.address, "HF_HOME": str(folder / "hf"), "HF_TOKEN": "hf_x", "HF_HUB_OFFLINE": "0"}
        command, names = [sys.executable, "-c", _CALLS], os.environ | own | environment
        done = subprocess.run(command, input="\n".join(lines), env=names, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


class _Requests(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(f"POST {self.path}")
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.server.repositories.setdefault(name, [{}])
            self._json({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif found := re.fullmatch(r"/api/(datasets/.+)/paths-info/[^/]+", self.path):
            files, asked = self.server.repositories[found[1]][-1], parse_qs(body.decode())["paths"]
            self._json([_entry(name, files[name]) for name in asked if name in files])
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            asked = [entry["path"] for entry in json.loads(body)["files"]]
            files = [{"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for path in asked]
            self._json({"files": files})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", self.path):
            commits, lines = self.server.repositories[found[1]], [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            commits.append(commits[-1] | {file["path"]: base64.b64decode(file["content"]) for file in files})
            oid = self.server.commit(found[1], len(commits) - 1)
            url = f"{self.server.address}/{found[1]}/commit/{oid}"
            self._json({"commitOid": oid, "commitUrl": url, "success": True})
        elif self.path == "/api/validate-yaml":
            license = re.search(r"^license: (.*)$", json.loads(body)["content"], re.MULTILINE)
            is_known = license is None or " " not in license[1]
            errors = [] if is_known else [{"message": f'"license" must be one of [...], not {license and license[1]}'}]
            self._json({"errors": errors, "warnings": []}, 200 if is_known else 400)
        else:
            self._json({}, 404)

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        asked = re.sub(r"^(/api/datasets/[^/]+/[^/?]+)$", r"\1/revision/main", unquote(self.path))
        found = re.fullmatch(
            r"/(?:api/)?(?:models/)?((?:datasets/)?[^/]+/[^/]+)/(revision|resolve|tree)/([^/?]+)(?:/([^?]*))?(?:\?.*)?",
            asked,
        )
        if found is None or found[1] not in self.server.repositories:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return
        number = self.server.number(found[1], found[3])
        if number is None:
            self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
            return
        files, commit = self.server.repositories[found[1]][number], self.server.commit(found[1], number)
        if found[2] == "revision":
            siblings = [{"rfilename": name} for name in files]
            self._json(
                {"id": found[1], "modelId": found[1], "sha": commit, "siblings": siblings, "tags": [], "private": False}
            )
        elif found[2] == "tree":
            self._json(list(_tree(files, found[4] or "", "recursive=false" not in self.path)))
        elif found[4] not in files:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        else:
            content = files[found[4]]
            headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
            if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                self._send(content[first : last + 1], headers, 206)
            else:
                self._send(content, headers)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {}), status)

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            is_cut = bool(self.server.breaks_off) and self.path.endswith(self.server.breaks_off)
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
            self.close_connection |= is_cut

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def _tree(files: dict[str, bytes], folder: str, is_deep: bool) -> Iterator[dict[str, Any]]:
    """What lies in a folder: files, and folders where their own files are not told."""
    start, folders = f"{folder}/" if folder else "", set()
    for name, content in files.items():
        rest = name.removeprefix(start)
        if name.startswith(start) and (is_deep or "/" not in rest):
            yield _entry(name, content)
        elif name.startswith(start):
            folders.add(start + rest.split("/")[0])
    for each in sorted(folders):
        yield {"type": "directory", "path": each, "size": 0, "oid": hashlib.sha1(each.encode()).hexdigest()}


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


@contextmanager
def serve_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
