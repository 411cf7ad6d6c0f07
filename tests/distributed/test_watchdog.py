"""Which process is blamed when a run stands still: the one that has come least far, unless it may take its time."""

import json
import socket
from time import monotonic
from typing import Any

import pytest

from toolkit.config.schema import TimeoutConfig
from toolkit.distributed.phase import PhaseTracker
from toolkit.distributed.watchdog import Watchdog
from toolkit.distributed.watchdog_verdict import Sign


def watchdog_of(
    seconds: dict[int, float], places: dict[int, tuple[int, int]], patient: tuple[int, ...] = ()
) -> Watchdog:
    """Return the watchdog of process 0, which has these signs of life of all processes."""
    watchdog = Watchdog(0, len(seconds), timeout=TimeoutConfig(silence=60.0, progress=10.0))
    beats: dict[int, dict[str, Any]] = {
        rank: {
            "count": 1,
            "what": f"at place {places[rank]}",
            "step": None,
            "patient": rank in patient,
            "place": list(places[rank]),
            "seconds": seconds[rank],
            "host": "here",
            "pid": 1,
            "born": 0.0,
        }
        for rank in seconds
    }
    watchdog.own_beat = lambda: json.dumps(beats[0])  # type: ignore[method-assign]
    watchdog.signs = {rank: Sign(beats[rank], monotonic()) for rank in beats if rank > 0}
    return watchdog


@pytest.mark.parametrize(
    ("seconds", "places", "patient", "blamed"),
    [
        # All move.
        ({0: 1, 1: 2}, {0: (5, 1), 1: (5, 2)}, (), None),
        # Process 0 waits in a collective for one that is behind.
        ({0: 12, 1: 11}, {0: (5, 3), 1: (5, 2)}, (), 1),
        ({0: 11, 1: 12}, {0: (5, 2), 1: (6, 0)}, (), 0),
        # The one behind has moved a moment ago: it is slow, and does not hang.
        ({0: 12, 1: 3}, {0: (5, 3), 1: (5, 2)}, (), None),
        # The one behind may take its time; the one ahead may not.
        ({0: 12, 1: 12}, {0: (5, 3), 1: (5, 2)}, (1,), None),
        ({0: 12, 1: 12}, {0: (5, 3), 1: (5, 2)}, (0,), 1),
        # Both stand at the same place: the one that came first has waited for longer.
        ({0: 11, 1: 12, 2: 13}, {0: (5, 2), 1: (5, 2), 2: (5, 2)}, (), 2),
        ({0: 30, 1: 12, 2: 30}, {0: (7, 2), 1: (5, 9), 2: (7, 2)}, (), 1),
    ],
)
def test_who_keeps_the_others_waiting(
    seconds: dict[int, float], places: dict[int, tuple[int, int]], patient: tuple[int, ...], blamed: int | None
) -> None:
    verdict = watchdog_of(seconds, places, patient).judge_progress()
    assert (verdict is None) == (blamed is None)
    if verdict is not None:
        assert verdict["code"] == 1
        assert verdict["text"].startswith(
            f"process {blamed} of {len(seconds)} has made no progress for {seconds[blamed or 0]} s "
            f"(timeout.progress is 10): it is at place {places[blamed or 0]}; "
        )


def test_a_place_never_goes_back() -> None:
    """Or else who seals the checkpoint of the step before would be taken for the one that is behind."""
    phases = PhaseTracker()
    places = []
    for step in (None, 1, 1, None, 2, 1, 2, 3):
        phases("working", step)
        places.append(phases.phase.place)
    assert places == sorted(places)
    assert len(set(places)) == len(places)


def test_a_silent_process_on_another_machine_may_be_behind_a_cut_network() -> None:
    here = socket.gethostname()
    for host, suspected in (
        (here, "it died or froze; it was last seen"),
        (
            "other",
            f"it or its machine (other) died or froze, or the network between other and {here} is cut; it was last "
            "seen",
        ),
    ):
        watchdog = watchdog_of({0: 1, 1: 1}, {0: (5, 1), 1: (5, 2)})
        watchdog.signs[1].beat["host"] = host  # type: ignore[index]
        watchdog.signs[1].heard -= 61
        verdict = watchdog.judge()
        assert verdict is not None
        assert verdict["text"].startswith(
            f"process 1 of 2 has given no sign of life for 61 s (timeout.silence is 60): {suspected}"
        )
