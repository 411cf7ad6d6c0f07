"""`toolkit predict`: the rows of a file with what a model predicts of each, in the order of the file.

The file is cut into blocks of rows, and a block into batches of like length, in the same way whatever the number of
processes. So each row shares its batch with the same rows, and the output is the same to the byte.
"""

import time
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.attention import watch_attention
from toolkit.checkpoint.format import digest_of_file
from toolkit.config.schema import Config
from toolkit.data.cache import digest_of
from toolkit.data.formats.archive import file_on_disk
from toolkit.distributed.memory import lack_of, lacks_memory
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import SharedUserError, UserError
from toolkit.models.card import THRESHOLDS
from toolkit.models.packing import take_padding_out
from toolkit.output.console import SECONDS_BETWEEN_LINES, Console, clock
from toolkit.output.provenance import versions
from toolkit.output.run_folder import explain_disk_errors
from toolkit.predict.forms import as_trained, look_for, without_header
from toolkit.predict.models import Trained, find_model, load_predictor
from toolkit.predict.parts import Parts
from toolkit.predict.rows import ROWS_AT_ONCE, InputFile, Seen, files_in
from toolkit.predict.wish import Wish, check_output
from toolkit.predict.writing import writing_rows
from toolkit.predictor import Predictor, Request
from toolkit.run import ending_together

SHOWN = 5
"""Row numbers that a remark lists."""


def predict(wish: Wish) -> None:
    """Write the rows of a file with the predictions of a model.

    Raises:
        UserError: the model or the file is not to be had, they do not fit each other, or the output can't be written.
    """
    config = Config(threads=wish.threads)
    if problems := list(config.problems()):
        raise UserError(*(f"--{problem}" for problem in problems))
    runtime = start_runtime(config)
    console = Console(runtime.is_main)
    with ending_together(runtime):
        if runtime.strategy.sharded or runtime.strategy.zero is not None:
            raise SharedUserError(
                f"the launch configuration asks for {runtime.strategy.description}, and toolkit predict runs the whole "
                "model in each process; start it with accelerate_configs/cpu.yaml or ddp_one_node.yaml"
            )
        runtime.on_main(lambda: check_output(wish))
        trained = runtime.together(lambda: find_model(wish.model, wish.dtype))
        runtime.phase("reading the file", patient=True)
        file, how = runtime.on_main(lambda: as_trained(InputFile(wish.file, wish.header), trained))
        seen = runtime.on_main(lambda: look_for(file, wish.output.suffix.lower(), trained))
        columns, rows = seen.columns, seen.rows
        request = Request(
            columns,
            wish.columns,
            trained.columns,
            trained.settings,
            wish.scores,
            wish.tokens,
            wish.threshold,
            without_header(file, seen, trained),
        )
        predictor = runtime.together(lambda: load_predictor(trained, request, wish.file))
        runtime.on_main(lambda: check_names(columns, predictor, wish.columns))
        if wish.threshold is not None and trained.task != "text-classification":
            raise SharedUserError(f"--threshold goes with models of several labels, and this is {trained.told}")
        parts = Parts(wish.output)
        blocks = -(-rows // ROWS_AT_ONCE)
        with explain_disk_errors(wish.output.parent, "the folder"):
            there = runtime.on_main(lambda: parts.begin(made_of(wish, file, trained, runtime), wish.overwrite))
        console.summary(
            "toolkit predict",
            {
                "model": trained.told,
                "file": f"{wish.file}, {rows:,} rows" + (f", {how['form']}" if "form" in how else ""),
                **({"header": how["header"]} if "header" in how else {}),
                **predictor.summary,
                **({"goes on": f"{there:,} of {blocks:,} blocks of rows are there already"} if there else {}),
            },
        )
        begun = time.monotonic()
        done = predict_blocks(wish, predictor, file, parts, runtime, Progress(console, rows, there))
        runtime.phase("waiting for the other processes", patient=True)
        total = sum(runtime.gather_all(done))
        seconds = time.monotonic() - begun
        runtime.phase("writing the output", patient=True)
        remarks = runtime.on_main(lambda: write_output(wish, predictor, file, seen, parts))
        rate = f", {total / seconds:,.0f} rows/s" if total and seconds > 0 else ""
        console.print(f"predicted {total:,} rows in {clock(seconds)}{rate}")
        for remark in remarks:
            console.print(f"  note: {remark}")
        console.summary("", {"predictions": str(wish.output)})


def check_names(columns: list[str], predictor: Predictor, given: Mapping[str, str]) -> None:
    """Refuse columns that would be overwritten, and those that are given for nothing.

    Raises:
        UserError: the file has a column that a prediction adds, or one was given for a part that there is not.
    """
    if unknown := [part for part in given if part not in predictor.parts]:
        near = get_close_matches(unknown[0], predictor.parts, 1)
        hint = f"did you mean {near[0]}={given[unknown[0]]}?" if near else "leave it out"
        raise UserError(f"--column gives {unknown[0]}, and this model reads {', '.join(predictor.parts)}; {hint}")
    if taken := [name for name in predictor.adds if name in columns]:
        raise UserError(
            f"the file has the columns {', '.join(map(repr, taken))} already, which the predictions would add; rename "
            "them in the file"
        )


def made_of(wish: Wish, read: InputFile, trained: Trained, runtime: Runtime) -> dict[str, Any]:
    """Return everything that the predictions follow from, for the next start of the same command."""
    file = file_on_disk(wish.file)
    content = digest_of_file(file) if file.is_file() else digest_of([stamp(path) for path in files_in(file)])
    if file != wish.file:  # which table of the file
        content = digest_of(content, wish.file.relative_to(file).as_posix())
    return {
        "versions": versions(),
        "model": trained.digests,
        "file": content,
        "columns": [dict(wish.columns), read.header, read.read_as],
        "settings": [wish.scores, wish.tokens, ROWS_AT_ONCE, wish.threshold, trained.settings.get(THRESHOLDS)],
        "precision": [wish.dtype, runtime.precision, runtime.device.type],
        # Rows that share a batch with others are the same to the last digits alone.
        "batch": wish.batch,
    }


def stamp(path: Path) -> list[Any]:
    """Return what tells whether a file is another one by now, without reading it."""
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns]


class Progress:
    """Says every few seconds how many rows are done, in the main process; the others are as fast."""

    def __init__(self, console: Console, rows: int, there: int) -> None:
        self.console, self.rows = console, rows
        self.done = there * ROWS_AT_ONCE
        self.own = 0
        self.begun = self.line_at = time.monotonic()

    def add(self, rows: int, processes: int) -> None:
        """Note that this process has predicted so many more rows."""
        self.own += rows
        self.done += rows * processes
        now = time.monotonic()
        if now - self.line_at < SECONDS_BETWEEN_LINES or self.done >= self.rows:
            return
        self.line_at = now
        rate = self.own * processes / (now - self.begun)
        left = clock((self.rows - self.done) / rate)
        self.console.print(f"row {self.done:,} of {self.rows:,}  {rate:,.0f} rows/s  {left} left")


def predict_blocks(
    wish: Wish, predictor: Predictor, file: InputFile, parts: Parts, runtime: Runtime, progress: Progress
) -> int:
    """Predict the blocks of this process that are not there yet, and return how many rows they had.

    Raises:
        UserError: memory runs out, or the disk does.
    """
    model = predictor.model.to(runtime.device).eval()
    watch_attention()
    take_padding_out(model)  # where it can't, padding is computed too
    done = 0
    with explain_disk_errors(parts.folder, "the folder"), torch.inference_mode(), runtime.accelerator.autocast():
        for number, block in enumerate(file.blocks()):
            if number % runtime.size != runtime.rank or parts.has(number):
                continue
            encoded = predictor.encode(block)
            found: list[Any] = [None] * len(encoded.samples)
            batches = list(batches_of(encoded.lengths, wish.batch))
            while batches:
                places = batches.pop(0)
                # However long a model writes, it does not hang.
                runtime.phase(f"predicting block {number:,}", patient=True)
                try:
                    batch = predictor.collate([encoded.samples[place] for place in places])
                    values = predictor.predict(model, runtime.to_device(batch))
                except Exception as error:
                    if not lacks_memory(error):
                        raise
                    if len(places) == 1:
                        raise UserError(
                            f"{lack_of(error)} for a single sample of {encoded.lengths[places[0]]:,} tokens; take a "
                            "machine with more, then the same command goes on"
                        ) from None
                    half = len(places) // 2
                    batches[:0] = [places[:half], places[half:]]
                    continue
                for place, value in zip(places, values, strict=True):
                    found[place] = value
            predictions = predictor.decode(block, encoded, found)
            parts.write(number, predictions, encoded.remarks)
            done += len(block)
            progress.add(len(block), runtime.size)
    return done


def batches_of(lengths: Any, size: int) -> Iterator[list[int]]:
    """Yield the places of samples that share a batch, the longest ones first."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    for start in range(0, len(order), size):
        yield order[start : start + size]


def write_output(wish: Wish, predictor: Predictor, file: InputFile, seen: Seen, parts: Parts) -> list[str]:
    """Put the rows of the file and their predictions together, delete the parts, and return what is to be said."""
    ending = wish.output.suffix.lower()
    partial = wish.output.with_name(f"{wish.output.name}.partial")
    remarks: dict[str, list[int]] = {}
    empty = dict.fromkeys(predictor.adds)
    with (
        explain_disk_errors(wish.output.parent, "the folder"),
        writing_rows(partial, ending, seen, predictor.adds) as writer,
    ):
        for number, block in enumerate(file.blocks()):
            predictions, said = parts.read(number)
            writer.write([{**row, **empty, **predictions.get(place, {})} for place, row in enumerate(block)])
            for remark, rows in said.items():
                remarks.setdefault(remark, []).extend(number * ROWS_AT_ONCE + row for row in rows)
    with explain_disk_errors(wish.output.parent, "the folder"):
        partial.replace(wish.output)
    parts.remove()
    return [f"{row_numbers(rows)} {remark}" for remark, rows in remarks.items()]


def row_numbers(rows: list[int]) -> str:
    """Return how many rows these are, and the numbers of the first ones, counted from 1."""
    numbers = ", ".join(f"{row + 1:,}" for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
    return f"{len(rows):,} row{'s' * (len(rows) > 1)} ({numbers})"
