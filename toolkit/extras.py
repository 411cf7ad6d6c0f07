"""Packages that only some recipes need: they are imported when they are used, and their absence is told in a sentence."""

from importlib import import_module
from types import ModuleType

from toolkit.errors import UserError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Return an optional module, imported now.

    Args:
        module: its import name.
        extra: the extra of this project that brings it.
        purpose: what it is needed for, such as "entity F1".

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UserError(
            f"{purpose} needs the package {error.name}, which is not installed; install it with pip install -e '.[{extra}]'"
        ) from None
