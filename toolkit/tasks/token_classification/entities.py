"""Entities in tags, and which of those that were predicted answers which of those that are wanted.

The classes of error are those of MUC-5 (Chinchor and Sundheim, 1993: correct, incorrect, partial, missing, spurious),
with the incorrect and the partial ones told apart by what is wrong: the type, the boundary, or both.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from toolkit.tasks.token_classification.tags import OUTSIDE

FIRST, LAST = "BSU", "ELSU"
"""Marks of words with which an entity begins, and after which it ends, in BIO and in the longer schemes."""
PAIRED = ("exact", "wrong_type", "wrong_boundary", "both_wrong")
"""What a wanted and a predicted entity that share a word may be to each other, the best first."""
OUTCOMES = (*PAIRED, "missed", "spurious")


class Entity(NamedTuple):
    """Some words of a sentence in a row, and the type that they have; one alone may have the type ""."""

    first: int
    end: int
    """The number of the word after its last."""
    type: str


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in their order, as the script `conlleval` reads them: an I-x that continues
    nothing begins one."""
    found: list[Entity] = []
    ended = True
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            ended = True
            continue
        if ended or tag[0] in FIRST or tag[2:] != found[-1].type:
            found.append(Entity(place, place, tag[2:]))
        found[-1] = found[-1]._replace(end=place + 1)
        ended = tag[0] in LAST
    return found


def in_words(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Return the entities of a sentence in words, such as "Empire State Building (location)"."""
    return [" ".join(words[one.first : one.end]) + (f" ({one.type})" if one.type else "") for one in entities_of(tags)]


def outcomes(predicted: Sequence[Entity], wanted: Sequence[Entity]) -> Iterator[tuple[str, str]]:
    """Yield the type and the outcome of each entity of a sentence; of two that answer each other, the wanted type.

    An entity answers at most one other, with which it shares a word. Pairs are made in the order of `PAIRED`, those
    with the most words in common first, and of equal ones the first in the sentence. What is left is missed or
    spurious.
    """
    owner = {word: place for place, one in enumerate(wanted) for word in range(one.first, one.end)}
    pairs = []
    for place, one in enumerate(predicted):
        shared = Counter(owner[word] for word in range(one.first, one.end) if word in owner)
        for other, words in shared.items():
            right = wanted[other]
            how = (one.type != right.type) + 2 * (one[:2] != right[:2])
            pairs.append((how, -words, other, place))
    left, open_ = set(range(len(predicted))), set(range(len(wanted)))
    for how, _, other, place in sorted(pairs):
        if place in left and other in open_:
            left.remove(place)
            open_.remove(other)
            yield wanted[other].type, PAIRED[how]
    yield from ((wanted[other].type, "missed") for other in sorted(open_))
    yield from ((predicted[place].type, "spurious") for place in sorted(left))
