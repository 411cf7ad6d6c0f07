"""`slow_recipe.py` in process groups whose own time-out is two seconds, where torch's is ten minutes or thirty."""

from datetime import timedelta

from slow_recipe import Slow, task

from toolkit import fine_tune
from toolkit.distributed import rendezvous as meeting

meeting.default_pg_timeout = timedelta(seconds=2)  # type: ignore[attr-defined]
meeting.SECONDS_FOR_THE_WATCH = 2.0

if __name__ == "__main__":
    fine_tune(Slow, task)
