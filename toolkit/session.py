"""One start of a run in its folder: from the data to the result, and a word in run.json on how it ended, whatever happens."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from toolkit.checkpoint.exchange import Exchange
from toolkit.checkpoint.format import digest_of_file, retire
from toolkit.checkpoint.load import load_checkpoint
from toolkit.checkpoint.previous import bring_ledger, make_way
from toolkit.checkpoint.resume import Start, begun_from_scratch, check_data, check_length, choose_start
from toolkit.checkpoint.sharded import check_folder_is_shared, shard_map_of
from toolkit.checkpoint.writer import PartWriter, Saver, newest_name
from toolkit.config.schema import Config
from toolkit.config.yaml import to_yaml
from toolkit.data.overlap import overlap_of
from toolkit.distributed.last_word import say_last
from toolkit.distributed.launch import agent
from toolkit.distributed.memory import lacks_memory
from toolkit.distributed.phase import PREPARING, WRITING
from toolkit.distributed.preflight import digests_of_data
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.watchdog import Verdict
from toolkit.errors import DEFECT, STOPPED, USER_CAN_FIX, Preempted, UserError
from toolkit.loop import train
from toolkit.models.parameters import weights_of
from toolkit.output.console import Console, Display, clock
from toolkit.output.evaluation_file import Evaluation, evaluation_of, numbers, write_evaluation
from toolkit.output.ledger import Ledger
from toolkit.output.provenance import changes, provenance, versions
from toolkit.output.run_folder import RunFolder, explain_disk_errors, now, write_whole
from toolkit.plan_warnings import warnings_of, worse_than
from toolkit.prepare import plan, prepare, state_bytes, whole_model
from toolkit.progress import Progress
from toolkit.rehearsal import check_space, in_words, results_for_export, try_evaluation
from toolkit.schedules import total_steps
from toolkit.task import Task
from toolkit.train_state import Training, take_state

AnyConfig = TypeVar("AnyConfig", bound=Config)


OVERLAP_TOLD = 0.01
"""Of the evaluation samples; some texts come twice in any data."""
PLACES = {
    "model": "model",
    "predictions": "predictions.jsonl",
    "ledger": "ledger.jsonl",
    "settings": "config.yaml",
}
"""What the user is told of when a run is finished."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    metrics: dict[str, float]
    """Of the last evaluation."""
    baseline: dict[str, float]
    """Of the trivial prediction, on the same samples."""
    steps: int
    output: Path


class Session:
    """One start of a run: from claiming its folder to writing down how it ended."""

    def __init__(self, folder: RunFolder, runtime: Runtime, recipe: str) -> None:
        self.folder = folder
        self.runtime = runtime
        self.recipe = recipe
        self.began = time.monotonic()
        self.preparing = 0.0
        self.begun = False
        """Whether training has begun."""
        self.progress = Progress()
        runtime.watchdog.on_exit = self.end_by_watchdog
        if runtime.is_main:
            runtime.stop.file = folder.stop_file

    def carry_on(self, config: AnyConfig, build_task: Callable[[AnyConfig], Task], console: Console) -> Result:
        """Prepare, train from where the run stands, export, and write down the result."""
        folder, runtime = self.folder, self.runtime
        runtime.phase("reading data", patient=True)
        task = runtime.together(lambda: build_task(config))
        total = total_steps(config, len(task.data.train))
        if finished := runtime.on_main(lambda: nothing_to_do(folder, config, task)):
            console.print(f"{self.recipe}: this run is finished, on the same data; nothing was trained again")
            tell(finished, console)
            return finished
        start = runtime.on_main(lambda: choose_start(folder, config, runtime.precision, total))
        made_with = provenance(config)
        changed = runtime.on_main(lambda: self.what_changed(start, config, made_with))
        runtime.phase(PREPARING, patient=True)
        tries = config.rehearse and start.step == 0
        unused = start.state.get("unused", ())
        training = prepare(task, config, runtime, start.step, unused, folder if tries else None)
        training.starts = [*start.starts, {"first_step": start.step + 1, "started": now(), **made_with}]
        progress = self.progress = Progress(steps=start.step)
        module = runtime.accelerator.unwrap_model(training.model)
        check_folder_is_shared(folder, module, runtime)
        if start.checkpoint is not None:
            written = f"when {start.checkpoint} was written"
            runtime.on_main(lambda: check_data(training.data, start.state.get("data", {}), written))
            load_checkpoint(start, module, training.optimizer.optimizer, runtime, training.frozen)
            take_state(training, progress, dict(start.state))
        summary = {**runtime.together(lambda: plan(training)), "run folder": str(folder.path)}
        remarks = [*start.remarks, *changed]
        training.warnings += warnings_of(training)
        if tries:
            runtime.phase("trying the end of the run", patient=True)
            runtime.together(lambda: try_evaluation(task, config, runtime, training.model), talking=True)
            training.warnings += runtime.on_main(lambda: self.look_ahead(training))
        if folder.locks_nothing is not None:
            remarks.append(
                f"the file system of {folder.path} has no locks ({folder.locks_nothing}): make sure that no other process trains there"
            )
        for remark in remarks:
            console.print(f"{self.recipe}: {remark}")
        console.summary(f"{self.recipe}: the plan", summary)
        for warning in training.warnings:
            console.print(f"  warning: {warning}")
        if start.checkpoint is not None:
            console.print(f"going on after step {start.step:,}, from {start.checkpoint}")
        if moved := runtime.on_main(lambda: self.begin(training, start, summary)):
            console.print(moved)
        prepared = time.monotonic()
        self.preparing = prepared - self.began
        # Of a run whose model alone could not be saved there is nothing to do again but that.
        known = runtime.on_main(lambda: self.evaluated_before(training, start))
        evaluation = self.train_and_record(training, start, progress, console, known)
        runtime.phase(WRITING, patient=True)
        result = Result(evaluation.metrics, evaluation.baseline, progress.steps, folder.path)
        worse = worse_than(result.baseline, result.metrics)
        training.warnings += [worse] if worse else []
        trained = whole_model(training) if task.export is not None else None

        def finish() -> None:
            with explain_disk_errors(folder.path):
                self.finish(training, trained, evaluation, progress)

        runtime.on_main(finish)
        console.print(
            f"trained {progress.steps - start.step:,} steps in {clock(time.monotonic() - prepared)} (and {clock(self.preparing)} to prepare)"
            + (
                f"; {progress.skipped} step(s) left the weights alone, see `skipped` in the ledger"
                if progress.skipped
                else ""
            )
        )
        tell(result, console)
        if worse:
            console.print(f"\nwarning: {worse}")
        return result

    def what_changed(self, start: Start, config: Config, made_with: Mapping[str, Any]) -> list[str]:
        """Return what has changed since the starts that led to the checkpoint, in words for the user.

        Raises:
            UserError: something has, and `resume` is strict.
        """
        found = changes(start.starts, made_with) if start.checkpoint is not None else []
        if found and config.resume == "strict":
            raise UserError(
                *(f"{change}, and resume is strict" for change in found),
                "go on with what the run was made with, or go on all the same with --resume auto, which writes down the change",
            )
        return [f"{change}; the run goes on (--resume strict would not)" for change in found]

    def begin(self, training: Training, start: Start, summary: dict[str, str]) -> str | None:
        """Write down what is about to run; return what the user is told. Until here nothing in the folder was changed."""
        with explain_disk_errors(self.folder.path):
            remark = make_way(self.folder, start)
            self.begin_record(training, start, summary)
            # After run.json, which alone does not yet make the folder this run's.
            write_whole(self.folder.config_file, to_yaml(training.config))
            bring_ledger(self.folder, start)
        self.begun = True
        return remark

    def begin_record(self, training: Training, start: Start, summary: dict[str, str]) -> None:
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
            **training.starts[-1],
        }
        previous = folder.record() if start.checkpoint is not None else {}
        folder.replace_record(
            status="running",
            step=start.step,
            epoch=start.step / training.steps_per_epoch,
            metrics={},
            baseline={},
            topology=[*previous.get("topology", []), topology],
            versions=versions(),
            recipe=self.recipe,
            data=training.data,
            samples={
                "train": len(training.task.data.train),
                "evaluate": len(training.task.data.evaluate) if training.task.data.evaluate else 0,
            },
            files=previous.get("files") or digests_of_files(training.task.data.files),
            total_steps=training.total_steps,
            # The same command again goes on from the newest checkpoint, not from what it names.
            resumed_from=start.named or previous.get("resumed_from"),
            repeated=(0 if start.sets_aside else folder.record().get("repeated", 0)) + start.repeated,
            started_by=agent(),
            seconds=previous.get("seconds", {}),
            nonfinite=self.progress.nonfinite,
            plan=summary,
            warnings=training.warnings,
        )

    def look_ahead(self, training: Training) -> list[str]:
        """Return warnings about the data and the disk, in the main process.

        Raises:
            UserError: there is no room for what the run writes.
        """
        config, task = training.config.checkpoint, training.task
        every = config.every or training.steps_per_epoch
        # The newest, the best, and the one that is being written; short runs have fewer.
        most = min(max(1, config.keep) + 2, -(-training.total_steps // every))
        found = [check_space(self.folder.path, training.saved_bytes, state_bytes(training), most)]
        if task.data.evaluate is not None:
            overlap = overlap_of(task.data.train, task.data.evaluate)
            found.append(str(overlap) if overlap.share >= OVERLAP_TOLD else None)
        return [warning for warning in found if warning]

    def evaluated_before(self, training: Training, start: Start) -> Evaluation | None:
        """Return the last evaluation of a run of which nothing is left to be done but to save the model."""
        if start.step < training.total_steps or start.seal is None:
            return None
        return evaluation_of(self.folder.path, weights_of_training(start.step, start.seal))

    def train_and_record(
        self, training: Training, start: Start, progress: Progress, console: Console, known: Evaluation | None
    ) -> Evaluation:
        """Train, with ledger, checkpoints and display in the main process; where the state is spread, all write checkpoints.

        `known` is the evaluation of the last step, if it was written down before.
        """
        runtime = self.runtime
        module = runtime.accelerator.unwrap_model(training.model)
        pinned = runtime.has_own_memory
        exchange = None
        if runtime.watchdog.store is not None and not shard_map_of(weights_of(module), runtime).is_whole:
            exchange = Exchange(runtime.rank, runtime.watchdog.store)
        if not runtime.is_main:
            if exchange is None:
                return train(training, progress, known)
            progress.saver = PartWriter(self.folder, exchange, pinned)
            try:
                return train(training, progress, known)
            finally:
                progress.saver.wait()
        ledger = Ledger(self.folder.ledger_file, start.ledger)
        saver = Saver(self.folder, ledger, training.config.checkpoint.keep, pinned, exchange)
        saver.tidy()
        saver.previous = start.seal
        if start.checkpoint is not None and start.checkpoint.resolve().parent == self.folder.checkpoints.resolve():
            saver.begun = saver.newest = start.step
        saver.best = training.standing.best.step if training.standing.best else None
        progress.ledger, progress.saver = ledger, saver
        try:
            every, best = training.config.log.every, training.config.checkpoint.best.partition(" ")[2]
            with Display(console, training.total_steps, start.step, every=every, best=best) as display:
                progress.display = display
                return train(training, progress, known)
        finally:
            saver.wait()
            ledger.close()

    def finish(
        self, training: Training, trained: torch.nn.Module | None, evaluation: Evaluation, progress: Progress
    ) -> None:
        """Write evaluation and model and close the record, in this order: a run that says finished has its model.

        Raises:
            UserError: the model can't be saved; the same command tries it again, and does nothing else again.
        """
        progress.finish_writing()
        self.folder.check_is_there()
        assert progress.ledger is not None
        assert isinstance(progress.saver, Saver)
        progress.saver.retire(progress.saver.best)
        task, weights = training.task, weights_of_training(progress.steps, progress.saver.previous)
        if task.data.evaluate is not None and evaluation_of(self.folder.path, weights) is None:
            data = {"samples": len(task.data.evaluate), "digest": training.data.get("evaluate")}
            write_evaluation(self.folder.path, evaluation, weights, data)
        if task.export is not None and trained is not None:
            export, config = task.export, training.config
            results = results_for_export(
                task, config, evaluation.metrics, evaluation.baseline, progress.steps, evaluation.details
            )
            try:
                self.folder.write_model(lambda path: export(trained, path, results))
            except (UserError, OSError, SafetensorError):
                raise
            except Exception as error:
                if lacks_memory(error):
                    raise
                raise UserError(
                    f"training and evaluation are done, and to save the model failed: {in_words(error)}. The checkpoint of step "
                    f"{progress.steps:,} is sealed: mend this, then the same command saves the model, and does nothing else again"
                ) from error
        self.folder.update(
            status="finished",
            step=progress.steps,
            epoch=progress.steps / training.steps_per_epoch,
            metrics=evaluation.metrics,
            baseline=evaluation.baseline,
            warnings=training.warnings,
            skipped=progress.skipped,
            nonfinite=self.progress.nonfinite,
            ledger=asdict(progress.ledger.end),
            seconds=self.seconds(),
            ended=now(),
        )
        self.folder.stop_file.unlink(missing_ok=True)
        if training.config.checkpoint.keep == 0:
            # Only now: until the run was finished they were what it could go on from.
            retire(self.folder.checkpoints, 0, [])

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all starts that were written down, this one included."""
        previous = self.folder.record().get("seconds", {})
        training = time.monotonic() - self.began - self.preparing
        return {
            "preparing": previous.get("preparing", 0.0) + self.preparing,
            "training": previous.get("training", 0.0) + training,
        }

    def record_end(self, error: BaseException) -> None:
        """Write down why this start did not finish the run, in the main process.

        What cannot be written is left: the user is told in any case.
        """
        if not self.runtime.is_main or not self.folder.is_there():
            return
        with suppress(OSError):
            if isinstance(error, Preempted):
                self.record_preemption(error.step, error.reason)
            elif not isinstance(error, UserError):
                self.record_failure(f"{type(error).__name__}: {error}".rstrip(": "))
            elif self.begun:
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
            nonfinite=self.progress.nonfinite,
            ended=now(),
        )
        self.folder.stop_file.unlink(missing_ok=True)

    def record_failure(self, *problems: str, code: int = DEFECT, agent: str | None = None) -> None:
        """Write down why the run did not finish, and with which exit code; `agent` is the one that may not start it again."""
        self.folder.update(
            status="failed",
            code=code,
            problems=list(problems),
            agent=agent,
            nonfinite=self.progress.nonfinite,
            ended=now(),
        )

    def end_at_once(self, reason: str, expired: bool) -> None:
        """End the run now, from another thread than the main one."""
        # Whoever was asked ends all processes; what is written down, and with which code the main one ends, it finds itself.
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
            if self.runtime.is_main and self.begun:
                with suppress(OSError):
                    self.record_failure(text, code=code)
            if not verdict.get("told"):
                say_last(f"\n{self.recipe} can't go on:\n  - {text}; {left}", sys.stderr)
            return code
        code = STOPPED if verdict.get("expired") and sealed else DEFECT
        with suppress(OSError):
            if code == STOPPED:
                self.record_preemption(None, text)
            else:
                # An agent does not start again what was asked to stop.
                self.record_failure(f"ended at once: {text}", agent=agent())
        say_last(f"\n{self.recipe}: ended at once ({text}); {left}", sys.stderr)
        return code


def finished_result(folder: RunFolder) -> Result | None:
    """Return the result of a finished run."""
    record = folder.record()
    if record.get("status") != "finished":
        return None
    return Result(numbers(record["metrics"]), numbers(record["baseline"]), record["step"], folder.path)


def nothing_to_do(folder: RunFolder, config: Config, task: Task | None = None) -> Result | None:
    """Return the result of a run that is finished, unless the command asks for more steps or to start from scratch.

    Args:
        folder: the run folder.
        config: of this command; its settings are those of the run.
        task: where it says in other words where the data is, the data to compare.

    Raises:
        UserError: the run can't be made longer, or the data is not that of the run.
    """
    record = folder.record()
    if record.get("status") != "finished" or (config.resume == "never" and not begun_from_scratch(record)):
        return None
    total = total_steps(config, record["samples"]["train"])
    if total != record["total_steps"]:
        check_length(config, record["step"], record["total_steps"], total)
        return None
    if task is not None:
        check_data(digests_of_data(task), record["data"], f"when the run in {folder.path} was made")
    return finished_result(folder)


def weights_of_training(step: int, seal: str | None) -> dict[str, Any]:
    """Return which weights a run has after a step, by the seal of its checkpoint, as evaluation.json names them."""
    return {"of": "the training", "step": step, "checkpoint": seal}


def digests_of_files(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of the files that the data came from, for `toolkit verify`."""
    return {
        str(path.resolve()): {"bytes": path.stat().st_size, "sha256": digest_of_file(path)}
        for path in files
        if path.is_file()
    }


def tell(result: Result, console: Console, places: Mapping[str, str] = PLACES) -> None:
    """Print the result beside the trivial baseline, and where things are."""
    if result.metrics:
        rows = [
            (name, f"{value:.4f}", f"{result.baseline[name]:.4f}" if name in result.baseline else "")
            for name, value in result.metrics.items()
        ]
        columns = ["evaluation", "this model", "baseline"] if result.baseline else ["evaluation", "this model"]
        console.table("", columns, [row[: len(columns)] for row in rows])
    console.summary(
        "",
        {name: str(result.output / path) for name, path in places.items() if (result.output / path).exists()},
    )
