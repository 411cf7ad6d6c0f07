"""The end of a run: its best weights, the saved model, and what is written and printed of it."""

import time
from typing import Any

import torch
from safetensors import SafetensorError

from toolkit.best_weights import Exported, evaluations_of, never_best, settle_exported
from toolkit.checkpoint.format import retire
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.staging import in_bytes
from toolkit.checkpoint.writer import Saver
from toolkit.distributed.memory import lacks_memory
from toolkit.distributed.phase import WRITING
from toolkit.errors import UserError
from toolkit.optimizer import exported_weights
from toolkit.output.console import Console, clock
from toolkit.output.evaluation_file import Evaluation, evaluation_of, weights_of_training, write_evaluation
from toolkit.output.meters import arithmetic_of, described, device_peak, host_peak, peak_flops
from toolkit.output.result import Result, early_end, print_result
from toolkit.output.run_folder import RunFolder, bytes_in, explain_disk_errors
from toolkit.prepare import whole_model
from toolkit.printed_plan import worse_than
from toolkit.rehearsal.end_of_run import RunFacts, in_words, results_for_export
from toolkit.run_record import RunRecord
from toolkit.train_state import TrainState


def finish(state: TrainState, start: Start, evaluation: Evaluation, record: RunRecord, console: Console) -> Result:
    """Save the trained model, write down the result, and print it.

    Raises:
        UserError: the model can't be saved; the same command tries it again, and does nothing else again.
    """
    runtime, folder = state.runtime, record.folder
    runtime.phase(WRITING, patient=True)
    exported = settle_exported(state, evaluation, folder)
    evaluation = exported.evaluation
    other = exported.step if exported.step != state.step else None
    result = Result(evaluation.metrics, evaluation.baseline, state.step, folder.path, evaluation.undefined, other)
    found = [never_best(state, evaluation), worse_than(result.baseline, result.metrics)]
    state.warnings += (warnings := [warning for warning in found if warning])
    meters = measured(state)

    def write() -> None:
        with explain_disk_errors(folder.path):
            write_results(state, exported, folder, trained)
            record.finish(state, exported, meters)
            if state.config.checkpoint.keep == 0:
                # Only now: until the run was finished they were what it could go on from.
                retire(folder.checkpoints, 0, [])

    with exported_weights(state.config, state.model, state.optimizer.optimizer):
        trained = whole_model(state) if state.task.export is not None else None
        runtime.on_main(write)
    seconds = time.monotonic() - record.started - record.preparing
    console.print(
        f"trained {state.step - start.step:,} steps in {clock(seconds)} (and {clock(record.preparing)} to prepare)"
        + (f"; {state.skipped} step(s) left the weights alone, see `skipped` in the ledger" if state.skipped else "")
    )
    if state.step < state.total_steps:
        console.print(f"ended {early_end(state.step, state.total_steps, state.since_best, state.best_step)}")
    if state.step > start.step:
        console.summary("", described(meters))
    print_result(result, console)
    if runtime.is_main:
        console.summary("", {"on disk": on_disk(folder), "a page": f"toolkit report {folder.path}"})
    for warning in warnings:
        console.print(f"\nwarning: {warning}")
    return result


def on_disk(folder: RunFolder) -> str:
    """Return what a finished run takes on the disk, in words."""
    model, checkpoints = bytes_in(folder.model_folder), bytes_in(folder.checkpoints)
    more = "; --checkpoint.keep 0 keeps none of a finished run" if checkpoints else ""
    return f"{in_bytes(model)} of the model, {in_bytes(checkpoints)} of checkpoints{more}"


def measured(state: TrainState) -> dict[str, float | None]:
    """Return the meters of this start by name, in the main process; the memory is that of the process with most of
    it."""
    runtime = state.runtime
    memory = runtime.gather((host_peak(), device_peak(*runtime.devices))) or [(0, None)]
    name = torch.cuda.get_device_name(runtime.device) if runtime.device.type == "cuda" else ""
    peak = state.config.log.peak_flops or peak_flops(name, arithmetic_of(state.model, runtime.precision))
    return {
        **state.output.meters.as_json(peak, runtime.size * runtime.strategy.devices),
        "host_memory": max(host for host, _ in memory),
        "device_memory": max((device for _, device in memory if device is not None), default=None),
    }


def write_results(state: TrainState, exported: Exported, folder: RunFolder, trained: Any) -> None:
    """Write evaluation and model, in the main process. The record comes after: a run that says finished has its model.

    Raises:
        UserError: the model can't be saved.
    """
    task, saver, evaluation = state.task, state.output.writer, exported.evaluation
    state.output.wait()
    folder.check_is_there()
    assert isinstance(saver, Saver)
    saver.retire(state.best_step)
    weights = weights_of_training(exported.step, exported.seal, state.config.exports_average)
    if task.data.evaluate is not None and evaluation_of(folder.path, weights) is None:
        data = {"samples": len(task.data.evaluate), "digest": state.data.get("evaluate")}
        write_evaluation(folder.path, evaluation, weights, data)
    if task.export is None or trained is None:
        return
    export = task.export
    facts = RunFacts(evaluation, exported.step, state.rule, evaluations_of(folder), folder.record(), state.warnings)
    results = results_for_export(task, state.config, facts)
    try:
        folder.write_model(lambda path: export(trained, path, results))
    except (UserError, OSError, SafetensorError):
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        raise UserError(
            f"training and evaluation are done, and to save the model failed: {in_words(error)}. The checkpoint of "
            f"step {state.step:,} is sealed: mend this, then the same command saves the model, and does nothing else "
            "again"
        ) from error
