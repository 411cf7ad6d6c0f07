"""The package versions, the source code and the kind of machine of a start of a run, and what has changed since."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import toolkit
from toolkit.config.schema import Config
from toolkit.output.private_words import without_secrets

PACKAGES = ("finetune-toolkit", "torch", "accelerate", "transformers", "datasets", "evaluate", "numpy")
DIGITS = 12
"""Of the digest of a source file: enough to distinguish two versions of it."""


def provenance(config: Config) -> dict[str, Any]:
    """Return versions, digests of the source code and the machine, as JSON can hold them."""
    own = sha256(json.dumps(toolkit_source()).encode()).hexdigest()[:DIGITS]
    return {
        "versions": versions(),
        "source": {"toolkit": own, **recipe_source(config)},
        "machine": machine(),
    }


def command() -> str:
    """Return the command of this process, as it would be typed, without secrets."""
    return without_secrets(shlex.join(["python", *sys.argv]))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run's numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def toolkit_source() -> dict[str, str]:
    """Return the digest of every file of the toolkit, by its path in the package."""
    package = Path(toolkit.__file__).parent
    return {str(path.relative_to(package)): digest_of_source(path) for path in sorted(package.rglob("*.py"))}


def recipe_source(config: Config) -> dict[str, str]:
    """Return the digests of the recipe's file and of the modules that it imported from its folder, by file name."""
    recipe = getattr(sys.modules.get(type(config).__module__), "__file__", None)
    if recipe is None or not Path(recipe).is_file():
        return {}  # defined in a notebook
    folder = Path(recipe).resolve().parent
    own = Path(toolkit.__file__).resolve().parent
    if folder == own or own in folder.parents:
        return {}  # a plain `Config`
    files = {Path(recipe).resolve()}
    # Names are compared before paths are resolved, which takes many system calls for each of thousands of modules.
    names = set(os.listdir(folder))  # noqa: PTH208
    for module in tuple(sys.modules.values()):
        given = getattr(module, "__file__", None) or ""
        if os.path.basename(given) not in names:  # noqa: PTH119
            continue
        path = Path(given).resolve()
        # A module that was made in memory may name a file that does not exist.
        if path.suffix == ".py" and path.parent == folder and path.is_file():
            files.add(path)
    return {path.name: digest_of_source(path) for path in sorted(files)}


def digest_of_source(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:DIGITS]


def machine() -> str:
    """Return the kind of machine, which decides how arithmetic rounds."""
    import torch

    kind = f"{platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"
    if torch.cuda.is_available():
        kind += f", {torch.cuda.get_device_name()}"
    return kind


def changes(starts: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> list[str]:
    """Return what has changed since the earlier starts of a run, a sentence for each start that differs.

    A start that was recorded by an older version may lack some entries; these are not compared.
    """
    found: dict[tuple[str, ...], int] = {}
    for start in starts:
        differing = tuple(differences(start, now))
        if differing and differing not in found:
            found[differing] = start.get("first_step", 1)
    return [f"since step {first:,}: {', '.join(differing)}" for differing, first in found.items()]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between two starts, in words."""
    then = before.get("versions") or now["versions"]
    for name in dict.fromkeys([*then, *now["versions"]]):
        known, found = (versions.get(name, "not installed") for versions in (then, now["versions"]))
        if known != found:
            yield f"{name} was {known} and is now {found}"
    # A module next to the recipe may not have been imported yet; importing another one takes a change in a known one.
    for name, digest in before.get("source", {}).items():
        if now["source"].get(name, digest) != digest:
            yield f"the code of {'the toolkit' if name == 'toolkit' else name} has changed"
    if before.get("machine", now["machine"]) != now["machine"]:
        yield f"the machine was {before['machine']} and is now {now['machine']}"
