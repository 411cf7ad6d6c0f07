"""`toolkit push`: a trained model onto a hub, private unless told otherwise, after it was said what will be sent."""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import ERROR
from pathlib import Path
from typing import Any

from toolkit.checkpoint.staging import in_bytes
from toolkit.errors import STOPPED, UserError
from toolkit.output.console import Console
from toolkit.output.private_words import without_secrets
from toolkit.output.run_folder import RunFolder, read_record
from toolkit.push.answers import Refused, no_token, refused
from toolkit.push.files import Parts, find_model_folder, parts_of

COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = re.compile(
    r"(?!.*(?:\.\.|//|@\{|\.lock(?:/|$)))[^\s~^:?*\[\\\x00-\x1f\x7f./-][^\s~^:?*\[\\\x00-\x1f\x7f]*(?<![./])"
)
"""What git accepts as the name of a branch, and does not begin with a dot or a dash."""
WEIGHTS = re.compile(r"(?:adapter/)?(?:[^/]+\.safetensors(?:\.index\.json)?|adapter_config\.json)")
"""Files that decide which weights are loaded: those of an earlier model must not stay beside a new one's."""


@dataclass(frozen=True)
class Wish:
    """What is to be pushed, and where to."""

    model: Path
    """A run folder or a model folder."""
    repo: str
    """The name on the hub: owner/name, or a name alone for the owner of the token."""
    public: bool = False
    revision: str | None = None
    """The branch; None for the main one."""
    message: str | None = None
    """Of the commit."""
    also: tuple[str, ...] = ()
    """Files of the model's folder that are no part of a model, by name."""


@dataclass(frozen=True)
class Place:
    """A repository as it was found."""

    name: str
    exists: bool
    head: str | None = None
    """The newest commit of the branch; None where there is no such branch yet."""
    files: tuple[str, ...] = field(default=())
    """What the branch has."""


def push(wish: Wish, console: Console) -> int:
    """Send a model to the hub that HF_ENDPOINT names, and return the exit code.

    Raises:
        UserError: something in the command, the folder, the token, the network or the repository has to be mended
            first; nothing was changed then but what the message says.
    """
    from huggingface_hub import HfApi, get_token

    problems = list(problems_of(wish))
    folder: Path | None = None
    parts = Parts()
    try:
        folder = find_model_folder(wish.model)
        parts = parts_of(folder, wish.also)
    except UserError as error:
        problems += error.problems
    token = get_token()
    if token is None:
        problems.append(no_token())
    elif not re.fullmatch(r"[!-~]+", token):
        problems.append("the token (HF_TOKEN, or that of hf auth login) has characters that no token has; set it anew")
    if problems or folder is None:
        raise UserError(*problems)
    api = HfApi(endpoint=endpoint(), token=token, library_name="finetune-toolkit")
    with held(wish.model), quiet_library():
        try:
            return send(wish, folder, parts, api, console)
        except (UserError, Refused):
            raise
        except KeyboardInterrupt:
            print("\nstopped; what was sent is not sent again: the same command goes on", file=sys.stderr)
            return STOPPED
        except Exception as error:
            raise refused(error, wish.repo, api.endpoint) from error


def problems_of(wish: Wish) -> Iterator[str]:
    """Yield what is wrong with the command itself, a sentence each."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(wish.repo)
        if not wish.repo.isascii():  # which version 1 of the library lets pass
            raise HFValidationError
    except HFValidationError:
        yield (
            f"the repository {wish.repo!r} is no name that a hub accepts; give owner/name, of letters, digits, - _ and "
            ". (not at the ends, no -- or ..), at most 96 in each part"
        )
    if wish.revision is not None and COMMIT.fullmatch(wish.revision):
        yield f"--revision is {wish.revision}, a commit; only a branch can be pushed to: give its name"
    elif wish.revision is not None and not BRANCH.fullmatch(wish.revision):
        yield f"--revision is {wish.revision!r}, which can't be the name of a branch; give one such as dev"
    if wish.message is not None and not wish.message.strip():
        yield "--message is empty; give the commit's message, or leave it out"
    if wish.message is not None and without_secrets(wish.message) != wish.message:
        yield "--message holds what looks like a token or a password; leave it out: no commit can be unsaid"
    if constants.is_offline_mode():
        yield "HF_HUB_OFFLINE is set, so that nothing is sent; unset it (and TRANSFORMERS_OFFLINE) to push"
    if (given := endpoint()) is not None and not re.match(r"https?://[^/\s]+", given):
        yield f"HF_ENDPOINT is {without_secrets(given)!r}; give an address that begins with https://"


def endpoint() -> str | None:
    """Return the address of the hub where another one than the usual is named, by HF_ENDPOINT."""
    return os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or None


@contextmanager
def held(model: Path) -> Iterator[None]:
    """Keep a run from writing another model meanwhile, where the folder is one of a run and can be written.

    Raises:
        UserError: a process works in it.
    """
    run = model if read_record(model) else model.parent if model.name == "model" and read_record(model.parent) else None
    if run is None or not os.access(run, os.W_OK):
        yield
        return
    folder = RunFolder(run)
    try:
        folder.claim()
    except UserError:
        raise UserError(f"another process works in {run}; push it when that has ended") from None
    try:
        yield
    finally:
        folder.release()


@contextmanager
def quiet_library() -> Iterator[None]:
    """Have the library say nothing by itself: what matters of it is said here; its bars stay on a terminal."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    level, bars = logging.get_verbosity(), not are_progress_bars_disabled()
    logging.set_verbosity(ERROR)
    if bars and not sys.stderr.isatty():
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            enable_progress_bars()


def send(wish: Wish, folder: Path, parts: Parts, api: Any, console: Console) -> int:
    """Say what will be sent, send it, and say where it is."""
    name = wish.repo if "/" in wish.repo else f"{api.whoami()['name']}/{wish.repo}"
    branch = wish.revision or "main"
    place = look(name, branch, wish.public, api)
    former = [file for file in place.files if WEIGHTS.fullmatch(file) and file not in parts.sent]
    say(wish, folder, parts, place, branch, former, api, console)
    if not place.exists:
        api.create_repo(name, private=not wish.public)
        check_visibility(name, wish.public, api)
    if place.head is None and branch != "main":
        api.create_branch(name, branch=branch, exist_ok=True)
        place = look(name, branch, wish.public, api)
    commit = api.upload_folder(
        repo_id=name,
        folder_path=folder,
        # Every name stands for itself: none of them may be taken for a pattern.
        allow_patterns=[re.sub(r"([*?\[])", r"[\1]", file) for file in parts.sent],
        delete_patterns=former or None,
        revision=branch,
        commit_message=wish.message or message_for(wish.model, folder),
    )
    if commit.oid == place.head:
        console.print(
            f"{name} has exactly these files already: no commit was made; its newest one is "
            f"{without_secrets(str(commit.commit_url))}"
        )
    else:
        console.print(f"sent: {without_secrets(str(commit.commit_url))}")
        console.print(f'load it with from_pretrained("{name}"' + (f', revision="{branch}")' if wish.revision else ")"))
    return 0


def look(name: str, branch: str, public: bool, api: Any) -> Place:
    """Return how the repository stands.

    Raises:
        UserError: it is public and a private one was asked for, or the other way round, or `branch` is a tag.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        check_visibility(name, public, api)
    except RepositoryNotFoundError:
        return Place(name, exists=False)
    refs = api.list_repo_refs(name)
    if branch in {tag.name for tag in refs.tags}:
        raise UserError(f"--revision is {branch}, a tag of {name}, which stays where it is; give the name of a branch")
    if branch not in {one.name for one in refs.branches}:
        return Place(name, exists=True)
    info = api.repo_info(name, revision=branch)
    return Place(name, True, info.sha, tuple(file.rfilename for file in info.siblings or ()))


def check_visibility(name: str, public: bool, api: Any) -> None:
    """Check that a repository is what was asked for.

    Raises:
        UserError: it is public and a private one was asked for, or the other way round.
    """
    is_public = not api.repo_info(name).private
    if is_public == public:
        return
    there, asked = ("public", "private") if is_public else ("private", "public")
    remedy = "give --public" if is_public else "leave out --public"
    raise UserError(
        f"{name} is {there} on {without_secrets(api.endpoint)}, and it was to be {asked}; nothing was sent. "
        f"To push there all the same {remedy}; or make it {asked} in its settings on the hub, or give another name"
    )


def say(
    wish: Wish, folder: Path, parts: Parts, place: Place, branch: str, former: list[str], api: Any, console: Console
) -> None:
    """Print what will be sent, and where to."""
    state = "there already" if place.exists else "new"
    total = sum(parts.sent.values())
    told = {
        "model": str(folder),
        "repository": f"{place.name} on {without_secrets(api.endpoint)}, {state}",
        "readable for": "everybody (public)" if wish.public else "you and your organization (private)",
        "branch": branch + ("" if place.head is not None or branch == "main" else ", new"),
        "files": f"{len(parts.sent)}, {in_bytes(total)}",
    }
    if "README.md" not in parts.sent:
        told["card"] = "none: there is no README.md"
    if parts.left_out:
        told["left out"] = ", ".join(f"{name} ({reason})" for name, reason in parts.left_out.items())
    if former:
        told["removed there"] = f"{', '.join(former)}: weights of an earlier model"
    console.summary("toolkit push: what will be sent", told)
    for name, size in parts.sent.items():
        console.print(f"    {in_bytes(size):>10}  {name}")


def message_for(model: Path, folder: Path) -> str:
    """Return the message of the commit where none is given: which step of which run."""
    from toolkit.models.export import note_in

    step = note_in(folder).get("step")
    name = (folder.parent if folder.name == "model" else folder).resolve().name
    return f"Model of {name}" + (f" after step {step:,}" if isinstance(step, int) else "")
