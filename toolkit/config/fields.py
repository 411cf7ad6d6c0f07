"""What a field of the configuration says of itself, and the fields of a configuration one by one."""

from collections.abc import Iterator
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, get_type_hints


def execution(default: Any) -> Any:
    """Declare a field that changes the speed or the cadence of a run, but none of its numbers."""
    return field(default=default, metadata={"execution": True})


def locates(default: Any) -> Any:
    """Declare a field that says where data is found: with another value it is the same run if the data is the same."""
    return field(default=default, metadata={"locates": True})


def changes_numbers(config: Any, key: str) -> bool:
    """Return whether the setting of a dotted key decides the numbers of the run; so does one that is not known."""
    return not is_declared(config, key, "execution")


def is_declared(config: Any, key: str, what: str) -> bool:
    """Return whether a field was declared by `execution` or `locates`; the key is its own, or one in its mapping."""
    return any(entry.metadata.get(what) for name, _, entry in leaves(config) if f"{key}.".startswith(f"{name}."))


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield every field that is not a section, in order: its dotted key, its type and the field."""
    hints = get_type_hints(type(config))
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", hints[entry.name], entry


def at_least(lowest: int, name: str, value: int | None) -> Iterator[str]:
    """Yield a problem if `value` is below `lowest`; null is not."""
    if value is not None and value < lowest:
        yield f"{name} is {value}; it must be {lowest} or greater"
