"""What the user asks `toolkit predict` for, and what is wrong with it before anything is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from toolkit.config.model import Dtype
from toolkit.data.formats.archive import file_on_disk, is_file
from toolkit.data.formats.header import Header
from toolkit.data.formats.inside import divided
from toolkit.errors import UserError
from toolkit.output.run_folder import explain_disk_errors, read_record
from toolkit.predict.writing import WRITTEN


@dataclass(frozen=True)
class Wish:
    """What the user asks for."""

    model: Path | str
    """A run folder, a model folder or a hub id."""
    file: Path
    output: Path
    columns: Mapping[str, str]
    """Columns by the part that they play, as far as they are given."""
    header: Header = None
    scores: bool = False
    tokens: int | None = None
    threshold: float | None = None
    """Of several labels those are predicted whose probability is above it; None takes those of the model."""
    batch: int = 32
    """Samples that the model gets at once."""
    dtype: Dtype = "float32"
    threads: int | None = None
    overwrite: bool = False


def check_output(wish: Wish) -> None:
    """Check what can be known of the arguments.

    Raises:
        UserError: everything that is wrong with them.
    """
    problems = []
    if Path(wish.model).is_file() and (read_record(wish.file) or (wish.file / "config.json").is_file()):
        problems.append(
            f"MODEL is {wish.model}, a file, and FILE is {wish.file}, a model; give them the other way round: toolkit "
            f"predict {wish.file} {wish.model} --output {wish.output}"
        )
    there = wish.file.exists() or is_file(divided(wish.file)[0])
    if not there:
        around = wish.file.parent.iterdir() if wish.file.parent.is_dir() else ()
        close = get_close_matches(wish.file.name, [path.name for path in around if path.is_file()], 1, 0.7)
        hint = f"did you mean {wish.file.with_name(close[0])}?" if close else "give one with the rows to predict"
        problems.append(f"there is no file {wish.file}; {hint}")
    if wish.output.is_dir():
        problems.append(f"--output is {wish.output}, which is a folder; give a file, such as {wish.output / 'out.csv'}")
    elif wish.output.suffix.lower() not in WRITTEN:
        problems.append(f"--output is {wish.output}; give it one of the endings {', '.join(WRITTEN)}")
    elif wish.output.exists() and there and wish.output.samefile(file_on_disk(wish.file)):
        problems.append(f"--output is {wish.output}, the file that is read; give another name")
    elif wish.output.exists() and not wish.overwrite:
        problems.append(f"--output is {wish.output}, which exists; give another name, or --overwrite")
    if wish.batch < 1:
        problems.append(f"--batch is {wish.batch}; it must be 1 or greater")
    if wish.tokens is not None and wish.tokens < 1:
        problems.append(f"--tokens is {wish.tokens}; it must be 1 or greater")
    if wish.threshold is not None and not 0 <= wish.threshold < 1:
        problems.append(f"--threshold is {wish.threshold}; it must be at least 0 and below 1")
    if problems:
        raise UserError(*problems)
    with explain_disk_errors(wish.output.parent, "the folder"):
        wish.output.parent.mkdir(parents=True, exist_ok=True)
