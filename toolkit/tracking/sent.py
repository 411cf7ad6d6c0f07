"""Which values of which steps a tracker has."""

from collections.abc import Iterable, Mapping

from toolkit.tracking.scalars import Values


class Sent:
    """The values that a tracker has, by step and name, in about a hundred bytes for each step."""

    def __init__(self, up_to: int = 0) -> None:
        """Begin with nothing, or with all values of the first steps."""
        self.up_to = up_to
        self.bits: dict[str, int] = {}
        """A bit for each name."""
        self.steps: dict[int, int] = {}
        """The bits of the names that are there, for each step."""

    def add(self, step: int, names: Iterable[str]) -> None:
        """Note that values of a step are there."""
        found = 0
        for name in names:
            found |= self.bits.setdefault(name, 1 << len(self.bits))
        self.steps[step] = self.steps.get(step, 0) | found

    def lacking(self, step: int, values: Mapping[str, float]) -> Values:
        """Return those of the values of a step that are not there."""
        if step <= self.up_to:
            return {}
        there = self.steps.get(step, 0)
        return {name: value for name, value in values.items() if not there & self.bits.get(name, 0)}
