"""Words that nobody else may read: tokens, passwords, and addresses that carry them."""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "<hidden>"
"""What stands in the place of a secret."""
SHAPES = re.compile(
    r"\b(?:hf_(?:oauth_)?[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|sk-[\w-]{20,}|xox[abpr]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
"""Tokens, as the hub, GitHub, GitLab, OpenAI, Slack and AWS write them, and JSON web tokens."""
NAMED = r"(?:access_|auth_|hf_|api_)?(?:token|password|passwd|secret|credentials?|api[_-]?key)"
IN_ADDRESS = re.compile(r"(?<=://)[^/\s@'\"]+@")
"""A name and a password before a host."""
IN_QUERY = re.compile(rf"([?&](?:{NAMED}|key|sig|signature|x-amz-[\w-]+)=)[^&\s'\"]+", re.IGNORECASE)
AFTER_FLAG = re.compile(rf"(--(?:[\w.-]+[._-])?{NAMED}(?:=|\s+))(?!--)('[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE)
IN_JSON = re.compile(
    r'"(?:(?:hf_|hub_|access_|auth_|api_|bearer_)?token|(?:[\w.-]*[._-])?(?:password|passwd|secret|credentials?'
    r'|(?:api|access|secret|private)[_-]?key))"\s*:\s*"([^"]+)"',
    re.IGNORECASE,
)
"""What a key of JSON says is secret. The tokens of a tokenizer, such as pad_token, are none."""
PLACEHOLDER = re.compile(r"['\"]?(?:[<\[{$%*.]|your\b|your_|x{3,}|\Z)", re.IGNORECASE)
"""How a word begins that stands for a secret, in the words of a manual."""
SHORTEST = 8
"""Characters: what is shorter in an environment variable is a word that may stand elsewhere by chance."""


def without_secrets(text: str) -> str:
    """Return a text in which nothing stands any more that looks like a token, or that is one of this environment."""
    for secret in sorted(secrets_here(), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = IN_ADDRESS.sub("", text)
    text = IN_QUERY.sub(rf"\g<1>{HIDDEN}", text)
    text = AFTER_FLAG.sub(rf"\g<1>{HIDDEN}", text)
    return SHAPES.sub(HIDDEN, text)


def settings_without_secrets(settings: Any, name: str = "") -> Any:
    """Return settings, as plain mappings, lists and scalars, without secrets in their texts."""
    if isinstance(settings, Mapping):
        return {key: settings_without_secrets(value, str(key)) for key, value in settings.items()}
    if isinstance(settings, list):
        return [settings_without_secrets(value, name) for value in settings]
    if not isinstance(settings, str):
        return settings
    is_secret = re.fullmatch(rf"(?:.*[._-])?{NAMED}", name, re.IGNORECASE)
    return HIDDEN if is_secret else without_secrets(settings)


def has_secret(text: str) -> bool:
    """Return whether a text holds what looks like a token or a password, or one of this environment.

    A word that only stands for one, such as `--token $HF_TOKEN`, is none.
    """
    if SHAPES.search(text) is not None or any(secret in text for secret in secrets_here()):
        return True
    in_addresses = (found.group().removesuffix("@") for found in IN_ADDRESS.finditer(text))
    if any(found != "git" and not PLACEHOLDER.match(found.partition(":")[2] or found) for found in in_addresses):
        return True
    named = [found.group().partition("=")[2] for found in IN_QUERY.finditer(text)]
    named += [found.group(2) for found in AFTER_FLAG.finditer(text)]
    named += [found.group(1) for found in IN_JSON.finditer(text)]
    return any(not PLACEHOLDER.match(value) for value in named)


def secrets_here() -> set[str]:
    """Return the token of the hub and those that environment variables hold."""
    from huggingface_hub import get_token

    ending = ("_TOKEN", "_API_KEY", "_PASSWORD", "_SECRET", "_SECRET_ACCESS_KEY")
    found = {value.strip() for name, value in os.environ.items() if name.upper().endswith(ending)}
    found.add((get_token() or "").strip())
    return {secret for secret in found if len(secret) >= SHORTEST}
