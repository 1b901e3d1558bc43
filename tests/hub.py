"""The Hugging Face Hub, as far as huggingface_hub asks for it to list and read, over scripted servers.

Large files lie elsewhere, as the Hub's do: it redirects to another host, which has ETags of its own and
must never be told the token.
"""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests import scripted
from tests.scripted import Answer, ScriptedServer

REPO = "owner/name"
_PAGE = 400  # entries of a page
_LARGE = 8  # bytes from which on a file lies elsewhere

Files = dict[str, bytes]


class Hub:
    """One data set; an Answer to every request of `server`, while `elsewhere` has the large files.

    `commits` are its versions, `branches` which of them each branch is. `token`: whose bearer alone is
    let in, if it is set; `gated`: nobody is.
    """

    def __init__(self, server: ScriptedServer, elsewhere: ScriptedServer) -> None:
        self.server, self._elsewhere = server, elsewhere
        self.commits: dict[str, Files] = {}
        self.branches: dict[str, str] = {}
        self.token = ""
        self.gated = False
        server.heads = elsewhere.heads = True
        server.down, elsewhere.down = self._answer, self._large
        self.commit({})

    def commit(self, files: Files, branch: str = "main") -> str:
        """Puts exactly these files into the branch."""
        name = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def asked(self, part: str) -> int:
        return sum(part in path for path in self.server.asked)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self._told(handler)(handler)

    def _told(self, handler: BaseHTTPRequestHandler) -> Answer:
        url = urlsplit(handler.path)
        if self.gated:
            return refused(403, "GatedRepo")
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return refused(401, "RepoNotFound")
        api, files = f"/api/datasets/{REPO}/", f"/datasets/{REPO}/resolve/"
        if url.path.startswith(f"{api}revision/"):
            commit = self._commit(unquote(url.path.removeprefix(f"{api}revision/")))
            about = {"id": REPO, "sha": commit, "tags": [], "siblings": []}
            return said(about) if commit else refused(404, "RevisionNotFound")
        if url.path.startswith(f"{api}tree/"):
            commit, _, folder = url.path.removeprefix(f"{api}tree/").partition("/")
            return self._tree(commit, unquote(folder), url.path, parse_qs(url.query))
        if url.path.startswith(files):
            commit, _, name = url.path.removeprefix(files).partition("/")
            return self._file(commit, unquote(name))
        return refused(404, "RepoNotFound")

    def _commit(self, revision: str) -> str:
        return revision if revision in self.commits else self.branches.get(revision, "")

    def _tree(self, commit: str, folder: str, path: str, query: dict[str, list[str]]) -> Answer:
        recursive = query["recursive"] == ["true"]
        files = self.commits[self._commit(commit)]
        under = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, object]] = {}
        # Not in the order of the names: nobody has promised that.
        for name in sorted((n for n in files if n.startswith(under)), reverse=True):
            above = name.rpartition("/")[0]
            entries[above] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": above}
            entries[name] = described(name, files[name])
        if not entries:
            return refused(404, "EntryNotFound")
        found = [entry for name, entry in entries.items() if name not in ("", folder)]
        if not recursive:
            found = [e for e in found if "/" not in str(e["path"]).removeprefix(under)]
        begin = int(query.get("cursor", ["0"])[0])
        further = f"{self.server.endpoint}{path}?recursive={str(recursive).lower()}&cursor={begin + _PAGE}"
        link = {"Link": f'<{further}>; rel="next"'} if begin + _PAGE < len(found) else {}
        return said(found[begin : begin + _PAGE], **link)

    def _file(self, commit: str, name: str) -> Answer:
        content = self.commits.get(commit, {}).get(name)
        if content is None:
            return refused(404, "EntryNotFound")
        if len(content) < _LARGE:
            return scripted.body(content, f'"{git_hash(content)}"')
        place = f"{self._elsewhere.endpoint}/blobs/{commit}/{quote(name)}?Signature=secret"
        return said(
            None,
            302,
            Location=place,
            X_Linked_Etag=f'"{hashlib.sha256(content).hexdigest()}"',
            X_Linked_Size=str(len(content)),
            X_Repo_Commit=commit,
        )

    def _large(self, handler: BaseHTTPRequestHandler) -> None:
        assert "Authorization" not in handler.headers, "the token has left the Hub"
        _, _, commit, name = urlsplit(handler.path).path.split("/", 3)
        scripted.body(self.commits[commit][unquote(name)], '"of the other host"')(handler)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def described(name: str, content: bytes) -> dict[str, object]:
    about: dict[str, object] = {"type": "file", "path": name, "size": len(content)}
    if len(content) < _LARGE:
        return {**about, "oid": git_hash(content)}
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {**about, "oid": git_hash(b"a pointer to " + content), "lfs": large}


def said(about: object, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        content = b"" if about is None else json.dumps(about).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    return answer


def refused(status: int, code: str) -> Answer:
    return said({"error": code}, status, X_Error_Code=code, X_Error_Message=code)
