"""A hub on this machine: a server that answers `huggingface_hub` as the Hugging Face Hub does, with real files.

It knows repositories, branches, commits, uploads of large files, tokens and visibility; what it got can be downloaded
again. Large files are those in safetensors, which come by the protocol of Git LFS.
"""

import base64
import json
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN, READER = "hf_" + "w" * 34, "hf_" + "r" * 34
"""A token that may write to what belongs to ann, and one that may only read."""


@dataclass
class Repository:
    """One repository: the files of every commit, by branch."""

    private: bool
    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each commit the key of each file's content, by path; in their order."""
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


class Hub(ThreadingHTTPServer):
    """The server and all that it holds."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.contents: dict[str, bytes] = {}
        """Contents of files, by SHA-256 of large ones and by git's hash of others."""
        self.requests: list[tuple[str, str]] = []
        self.uploaded: Counter[str] = Counter()
        """How often each large content was sent, by its hash."""
        self.answers: dict[str, tuple[int, str]] = {}
        """What is answered, and said, where a path has a part: to try what fails."""
        self.at_upload = threading.Event()
        """Set while a large file is sent, where `holds_back` is true."""
        self.holds_back = False
        self.ignores_private = False

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        """Return the files of a branch."""
        repository = self.repositories[name]
        return {
            path: self.contents[key]
            for path, key in repository.commits[repository.branches.get(branch, branch)].items()
        }

    def commit(self, name: str, branch: str, files: dict[str, str], message: str) -> str:
        """Add a commit and return its hash."""
        repository = self.repositories[name]
        text = json.dumps([name, branch, files, message, len(repository.commits)])
        number = sha1(text.encode()).hexdigest()
        repository.commits[number] = files
        repository.branches[branch] = number
        repository.messages.append(message)
        return number

    def create(self, name: str, private: bool) -> None:
        """Make a repository with what each begins with."""
        self.repositories[name] = Repository(private)
        attributes = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
        self.contents[git_hash(attributes)] = attributes
        self.commit(name, "main", {".gitattributes": git_hash(attributes)}, "initial commit")


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815 - http.server names them

    def answer(self) -> None:
        """Answer any request."""
        quoted = urllib.parse.urlsplit(self.path).path
        path = urllib.parse.unquote(quoted)
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, path))
        for part, (status, said) in self.server.answers.items():
            if part in path:
                return self.refuse(status, said)
        if path.startswith("/objects/"):
            return self.take_object(path.rpartition("/")[2], content)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in (TOKEN, READER):
            return self.refuse(401, "Invalid credentials in Authorization header")
        parts = [urllib.parse.unquote(part) for part in quoted.strip("/").split("/")]
        if parts == ["api", "whoami-v2"]:
            return self.send({"name": "ann", "type": "user", "orgs": []})
        if parts == ["api", "validate-yaml"]:
            return self.send({"errors": [], "warnings": []})
        if parts == ["api", "repos", "create"]:
            return self.create(json.loads(content), token)
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2]).removesuffix(".git")
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and not token):
            return self.refuse(404 if token else 401, "Repository not found", "RepoNotFound")
        if self.command in ("POST", "PUT") and token != TOKEN and "paths-info" not in path:
            return self.refuse(403, "You don't have the right to write here")
        return self.of_repository(name, repository, parts[4:] if parts[0] == "api" else parts[2:], content)

    def of_repository(self, name: str, repository: Repository, rest: list[str], content: bytes) -> None:
        """Answer a request about a repository."""
        match rest:
            case [] | ["revision", *_]:
                return self.show(name, repository, "/".join(rest[1:]) or "main")
            case ["refs"]:
                kinds = {"branches": ("heads", repository.branches), "tags": ("tags", repository.tags)}
                found = {
                    kind: [{"name": key, "ref": f"refs/{place}/{key}", "targetCommit": to} for key, to in refs.items()]
                    for kind, (place, refs) in kinds.items()
                }
                return self.send({**found, "converts": []})
            case ["branch", *branch]:
                repository.branches.setdefault("/".join(branch), repository.branches["main"])
                return self.send({})
            case ["tree", branch, *_]:
                return self.send(
                    [
                        {"type": "file", "path": path, "size": len(self.server.contents[key]), "oid": key}
                        for path, key in repository.commits[repository.branches.get(branch, branch)].items()
                    ]
                )
            case ["preupload", branch]:
                here = repository.commits[repository.branches[branch]]
                return self.send(
                    {
                        "files": [
                            {
                                "path": file["path"],
                                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                                "shouldIgnore": False,
                                "oid": here.get(file["path"]),
                            }
                            for file in json.loads(content)["files"]
                        ]
                    }
                )
            case ["info", "lfs", "objects", "batch"]:
                return self.send({"transfer": "basic", "objects": list(self.batch(json.loads(content)["objects"]))})
            case ["commit", branch]:
                return self.commit(name, repository, branch, [json.loads(line) for line in content.splitlines()])
            case ["resolve", revision, *path]:
                return self.give(repository, revision, "/".join(path))
        return self.refuse(404, f"no such address: {rest}")

    def create(self, wish: dict[str, Any], token: str) -> None:
        """Make a repository."""
        owner, name = wish.get("organization") or "ann", wish["name"]
        if not token:
            return self.refuse(401, "Invalid username or password.")
        if token != TOKEN or owner != "ann":
            return self.refuse(403, f"You don't have the rights to create a model under the namespace {owner}")
        whole = f"{owner}/{name}"
        if whole in self.server.repositories:
            return self.refuse(409, "You already created this model repo")
        private = wish.get("visibility") == "private" or bool(wish.get("private"))
        self.server.create(whole, private and not self.server.ignores_private)
        return self.send({"url": f"{self.server.address}/{whole}"})

    def show(self, name: str, repository: Repository, revision: str) -> None:
        """Tell what a repository is at a branch or a commit."""
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files = [{"rfilename": path} for path in repository.commits[commit]]
        return self.send({"id": name, "sha": commit, "private": repository.private, "siblings": files, "tags": []})

    def batch(self, objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Say where each large file is to be sent; nothing of one that is there."""
        for one in objects:
            known = {"oid": one["oid"], "size": one["size"]}
            place = f"{self.server.address}/objects/{one['oid']}"
            yield known if one["oid"] in self.server.contents else {**known, "actions": {"upload": {"href": place}}}

    def take_object(self, oid: str, content: bytes) -> None:
        """Take a large file."""
        if sha256(content).hexdigest() != oid:
            return self.refuse(400, "the content is not that of the hash")
        self.server.contents[oid] = content
        self.server.uploaded[oid] += 1
        if self.server.holds_back:
            self.server.at_upload.set()
            threading.Event().wait(30)  # whoever sends it is killed meanwhile
        return self.send({})

    def commit(self, name: str, repository: Repository, branch: str, lines: list[dict[str, Any]]) -> None:
        """Make a commit of some changes."""
        files, message = dict(repository.commits[repository.branches[branch]]), ""
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    content = base64.b64decode(value["content"])
                    files[value["path"]] = git_hash(content)
                    self.server.contents[git_hash(content)] = content
                case "lfsFile":
                    if value["oid"] not in self.server.contents:
                        return self.refuse(400, f"the content of {value['path']} was not sent")
                    files[value["path"]] = value["oid"]
                case "deletedFile":
                    del files[value["path"]]
        number = self.server.commit(name, branch, files, message)
        return self.send({"commitUrl": f"{self.server.address}/{name}/commit/{number}", "commitOid": number})

    def give(self, repository: Repository, revision: str, path: str) -> None:
        """Give a file."""
        commit = repository.branches.get(revision, revision)
        key = repository.commits.get(commit, {}).get(path)
        if key is None:
            return self.refuse(404, "Entry not found", "EntryNotFound")
        content = self.server.contents[key]
        self.send_response(200)
        for header, value in {
            "ETag": f'"{key}"',
            "X-Repo-Commit": commit,
            "Content-Length": str(len(content)),
        }.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        return None

    def send(self, answer: Any) -> None:
        """Send JSON."""
        self.reply(200, json.dumps(answer).encode())

    def refuse(self, status: int, said: str, code: str = "") -> None:
        """Send an error, as the hub says it."""
        self.reply(status, json.dumps({"error": said}).encode(), {"X-Error-Message": said, "X-Error-Code": code})

    def reply(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in (headers or {}).items():
            if value:
                self.send_header(header, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def git_hash(content: bytes) -> str:
    """Return what git calls a file."""
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def hub() -> Iterator[Hub]:
    """Run a hub in this block."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
