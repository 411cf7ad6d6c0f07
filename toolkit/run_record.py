"""What run.json says of a start, from its first words to how it ended, whatever happens."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.best_weights import Exported
from toolkit.checkpoint.format import digest_of_file
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.set_aside import bring_ledger, make_way
from toolkit.checkpoint.writer import newest_name
from toolkit.config.schema import Config
from toolkit.config.yaml import as_mapping, differing, to_yaml
from toolkit.distributed.final_message import print_final_message
from toolkit.distributed.launch import agent
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.watchdog_verdict import Verdict
from toolkit.errors import DEFECT, STOPPED, USER_CAN_FIX, Preempted, UserError
from toolkit.output.provenance import command, versions
from toolkit.output.run_folder import RunFolder, explain_disk_errors, now, write_whole
from toolkit.train_state import TrainState


class RunRecord:
    """Writes run.json for one start of a run, and says on the screen why it ended if another thread has to end it."""

    def __init__(self, folder: RunFolder, runtime: Runtime, recipe: str) -> None:
        self.folder = folder
        self.runtime = runtime
        self.recipe = recipe
        self.started = time.monotonic()
        self.preparing = 0.0
        """Seconds until training began."""
        self.nonfinite_steps: list[dict[str, Any]] | None = None
        """The state's own list, as soon as the start was written down. Not the state: its model holds process groups,
        and has to be gone when these are left."""
        runtime.watchdog.on_exit = self.end_by_watchdog
        if runtime.is_main:
            runtime.stop.file = folder.stop_file

    def begin(self, state: TrainState, start: Start, summary: Mapping[str, str]) -> str | None:
        """Write down what is about to run; return what the user has to know. Until here nothing in the folder was
        changed."""
        with explain_disk_errors(self.folder.path):
            remark = make_way(self.folder, start)
            self.begin_record(state, start, summary)
            # After run.json, which alone does not yet make the folder this run's.
            write_whole(self.folder.config_file, to_yaml(state.config))
            bring_ledger(self.folder, start)
        self.nonfinite_steps = state.nonfinite
        return remark

    def begin_record(self, state: TrainState, start: Start, summary: Mapping[str, str]) -> None:
        """Write the run.json of a run that is under way."""
        folder, runtime = self.folder, self.runtime
        topology = {
            "processes": runtime.size,
            "strategy": runtime.strategy.description,
            "device": runtime.device.type,
            "precision": runtime.precision,
            "threads": runtime.threads,
            "launch_file": runtime.launch.file,
            "folder": str(Path.cwd()),
            "command": command(),
            **state.starts[-1],
        }
        previous = folder.record() if start.checkpoint is not None else {}
        folder.replace_record(
            status="running",
            step=start.step,
            epoch=start.step / state.steps_per_epoch,
            metrics={},
            baseline={},
            topology=[*previous.get("topology", []), topology],
            versions=versions(),
            recipe=self.recipe,
            recipe_file=file_of(state.config),
            changed=changed_settings(state.config),
            data=state.data,
            samples={
                "train": len(state.task.data.train),
                "evaluate": len(state.task.data.evaluate) if state.task.data.evaluate else 0,
            },
            files=previous.get("files") or digests_of_files(state.task.data.files),
            total_steps=state.total_steps,
            # The same command again goes on from the newest checkpoint, not from what it names.
            resumed_from=start.named or previous.get("resumed_from"),
            repeated=(0 if start.sets_aside else folder.record().get("repeated", 0)) + start.repeated,
            started_by=agent(),
            seconds=previous.get("seconds", {}),
            nonfinite=state.nonfinite,
            plan=dict(summary),
            warnings=state.warnings,
        )

    def finish(self, state: TrainState, exported: Exported, meters: Mapping[str, float | None]) -> None:
        """Write down that the run is finished, after its evaluation and its model were written."""
        assert state.output.ledger is not None
        evaluation = exported.evaluation
        self.folder.update(
            status="finished",
            step=state.step,
            epoch=state.step / state.steps_per_epoch,
            exported={"step": exported.step, "rule": state.rule},
            since_best=state.since_best,
            metrics=evaluation.metrics,
            baseline=evaluation.baseline,
            undefined=dict(evaluation.undefined),
            warnings=state.warnings,
            skipped=state.skipped,
            nonfinite=state.nonfinite,
            ledger=asdict(state.output.ledger.end),
            seconds=self.seconds(),
            meters=dict(meters),
            ended=now(),
        )
        self.folder.stop_file.unlink(missing_ok=True)

    def training_begins(self) -> None:
        """Note that everything is prepared."""
        self.preparing = time.monotonic() - self.started

    def nonfinite(self) -> dict[str, Any]:
        """Return the steps whose gradient was not finite, if they are known: what is written down of them stays
        otherwise."""
        return {} if self.nonfinite_steps is None else {"nonfinite": self.nonfinite_steps}

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all starts that were written down, this one included."""
        previous = self.folder.record().get("seconds", {})
        training = time.monotonic() - self.started - self.preparing
        return {
            "preparing": previous.get("preparing", 0.0) + self.preparing,
            "training": previous.get("training", 0.0) + training,
        }

    def end(self, error: BaseException) -> None:
        """Write down why this start did not finish the run, in the main process.

        What cannot be written is left out: the user gets the message in any case.
        """
        if not self.runtime.is_main or not self.folder.is_there():
            return
        with suppress(OSError):
            if isinstance(error, Preempted):
                self.record_preemption(error.step, error.reason)
            elif not isinstance(error, UserError):
                self.record_failure(f"{type(error).__name__}: {error}".rstrip(": "))
            elif self.nonfinite_steps is not None:
                self.record_failure(*error.problems, code=USER_CAN_FIX)
            # In a new folder a refusal is recorded where it is reported. A finished run stays finished.
            elif not self.folder.is_new() and self.folder.record().get("status") != "finished":
                self.folder.update(status="refused", problems=list(error.problems), reason=None, ended=now())

    def record_preemption(self, step: int | None, reason: str) -> None:
        """Write down that the run stopped on request; the request is used up."""
        known = {} if step is None else {"step": step}
        self.folder.update(
            status="preempted",
            **known,
            reason=reason,
            agent=agent(),
            seconds=self.seconds(),
            **self.nonfinite(),
            ended=now(),
        )
        self.folder.stop_file.unlink(missing_ok=True)

    def record_failure(self, *problems: str, code: int = DEFECT, agent: str | None = None) -> None:
        """Write down why the run did not finish, and with which exit code; `agent` is the one that may not start it
        again."""
        self.folder.update(
            status="failed",
            code=code,
            problems=list(problems),
            agent=agent,
            **self.nonfinite(),
            ended=now(),
        )

    def end_at_once(self, reason: str, expired: bool) -> None:
        """End the run now, from another thread than the main one."""
        # Whoever was asked ends all processes; what is written down, and with which code the main one ends, it finds
        # itself.
        code = STOPPED if expired and newest_name(self.folder.path) else DEFECT
        self.runtime.watchdog.end({"text": reason, "code": code, "at_once": True, "expired": expired}, found_here=True)

    def end_by_watchdog(self, verdict: Verdict) -> int:
        """Tell the run folder and the user why all processes end now; return the exit code."""
        sealed, text, code = newest_name(self.folder.path), verdict["text"], verdict["code"]
        # Another machine may not see the run folder.
        nothing = (
            "no checkpoint was sealed" if self.runtime.is_main else "the run folder of process 0 says how to go on"
        )
        left = f"the same command goes on from {sealed}" if sealed else nothing
        if not verdict.get("at_once"):
            if self.runtime.is_main and self.nonfinite_steps is not None:
                with suppress(OSError):
                    self.record_failure(text, code=code)
            if not verdict.get("printed"):
                print_final_message(f"\n{self.recipe} can't go on:\n  - {text}; {left}", sys.stderr)
            return code
        code = STOPPED if verdict.get("expired") and sealed else DEFECT
        with suppress(OSError):
            if code == STOPPED:
                self.record_preemption(None, text)
            else:
                # An agent does not start again what was asked to stop.
                self.record_failure(f"ended at once: {text}", agent=agent())
        print_final_message(f"\n{self.recipe}: ended at once ({text}); {left}", sys.stderr)
        return code


def file_of(config: Config) -> str | None:
    """Return the file of the recipe whose configuration this is, None if it has none."""
    file = getattr(sys.modules.get(type(config).__module__), "__file__", None)
    return None if file is None else str(Path(file).resolve())


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the defaults of the recipe, by dotted key, that the settings differ from."""
    return {key: default for key, default, _ in differing(as_mapping(type(config)()), as_mapping(config))}


def digests_of_files(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of the files that the data came from, for `toolkit verify`."""
    return {
        str(path.resolve()): {"bytes": path.stat().st_size, "sha256": digest_of_file(path)}
        for path in files
        if path.is_file()
    }
