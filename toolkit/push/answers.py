"""What a hub or the network said, in words for the user; nothing of it shows a token."""

from collections.abc import Iterator

from toolkit.errors import UserError
from toolkit.output.private_words import without_secrets

LONGEST = 300
"""Characters of what a hub says."""


class Refused(UserError):  # noqa: N818 - it is what the hub did
    """The hub did not take it, or was not reached."""


def no_token() -> str:
    """Return the sentence for a machine without a token."""
    return (
        "there is no token of the hub here; log in with: hf auth login, or set HF_TOKEN to a token that may write "
        "(from your settings on the hub)"
    )


def refused(error: Exception, repo: str, endpoint: str) -> Exception:
    """Return an error for the user, or the given one if it is a defect and no answer of the hub."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    address = without_secrets(endpoint)
    chain = list(causes(error))
    if isinstance(error, ValueError) and "README.md" in str(error):
        return Refused(f"the hub does not take the metadata of README.md: {without_secrets(told(error))}; mend them")
    for one in chain:
        if isinstance(one, LocalTokenNotFoundError):
            return Refused(no_token())
        if isinstance(one, HfHubHTTPError):
            return Refused(in_words(one, repo, address))
    for one in chain:
        if "xet-write-token" in str(one) and "404" in str(one):
            return Refused(
                f"{address} has no Xet storage, by which large files are sent otherwise; set HF_HUB_DISABLE_XET=1 and "
                "start the same command again"
            )
        of_http = type(one).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "hf_xet")
        if of_http or isinstance(one, ConnectionError | TimeoutError):
            return Refused(
                f"{address} was not reached ({without_secrets(told(one))}); look at the network and at HF_ENDPOINT, "
                "then start the same command again: what was sent is not sent again"
            )
    return error


def in_words(error: Exception, repo: str, address: str) -> str:
    """Return what an answer of the hub means."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    said = without_secrets(str(getattr(error, "server_message", None) or told(error)))[:LONGEST]
    match status:
        case 401:
            return (
                f"{address} does not accept the token ({said}); log in again with: hf auth login, or set HF_TOKEN anew"
            )
        case 402:
            return f"{address} asks for a payment ({said}); make room there, or give another owner"
        case 403:
            return (
                f"the token may not write to {repo} on {address} ({said}); take one with the right to write there, or "
                "give another owner"
            )
        case 404:
            return f"{repo} was not found on {address} ({said}); look at its name, and whether the token may see it"
        case 409 | 412:
            return f"{repo} on {address} was changed by somebody else meanwhile ({said}); start the same command again"
        case 413:
            return f"{address} takes no such large files ({said})"
        case 429:
            return f"{address} wants fewer requests ({said}); wait some minutes, then start the same command again"
        case 400 | 422:
            return f"{address} does not take it: {said}"
    return (
        f"{address} has a fault of its own ({status}: {said}); start the same command again later: what was sent is "
        "not sent again"
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def told(error: BaseException) -> str:
    """Return what an error says in a line."""
    return " ".join(str(error).split())[:LONGEST] or type(error).__name__
