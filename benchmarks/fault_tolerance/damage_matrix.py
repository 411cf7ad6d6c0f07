"""Checkpoints that are damaged, and disks that are full: what a run says, and what it still comes to.

    python benchmarks/fault_tolerance/damage_matrix.py
        every file of a checkpoint, and file systems of many sizes, about three minutes on two free cores

A run with dropout is stopped after step 7 with checkpoints of steps 4, 5 and 7, and one file of the newest one is
damaged. The same command has to name that file, go on from the checkpoint before, and come to the weights and the
ledger of an undisturbed run, bit for bit. Then runs are started on small file systems (tmpfs in a name space of its
own, so that Linux is needed but no right), on one process and on two: each has to say that the disk is full, with exit
code 2, to leave checkpoints that are all valid, and to finish with the same weights when there is room. Exits with 1 if
something is not as promised.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from launching import TINY, clean_environment
from machine import accelerate_launch, machine, table
from resuming import Numbers, copy_of, is_valid, left_half_done, numbers, run, steps_sealed, stopped, undisturbed
from trial import Outcome

from toolkit.output.run_folder import read_record, sealed_folders

DROPOUT = ("--model.flaw", "dropout")
OFTEN = (*DROPOUT, "--checkpoint.every", "5", "--evaluate.every", "4", "--checkpoint.keep", "9")
WHOLE = (*DROPOUT, "--evaluate.every", "4")
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
NEWEST = "step-000007"
# Sizes of the file system in kB: one after another is full at another file.
SIZES = range(60, 164, 4)
LONG = (*DROPOUT, "--epochs", "null", "--steps", "60", "--checkpoint.every", "2", "--checkpoint.keep", "99")
SAID_OF_CHECKPOINTS = "passed over: "
FULL = "No space left on device"


def main() -> None:
    """Damage, fill, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if "TOOLKIT_OWN_NAME_SPACE" not in os.environ:
        # Mounting asks for a name space of its own, which this process can't leave again.
        environment = {**os.environ, "TOOLKIT_OWN_NAME_SPACE": "1"}
        os.execvpe("unshare", ["unshare", "--map-root-user", "--mount", sys.executable, *sys.argv], environment)
    with TemporaryDirectory() as place:
        damaged = damage_table(Path(place))
        filled = [*disk_rows(Path(place))]
    print("# Damaged checkpoints and full disks\n")
    print(machine() + "\n")
    print(table(("damage", "file", "said", "went on after", "weights and ledger of an undisturbed run"), damaged))
    print()
    print(
        table(
            (
                "processes",
                "file systems",
                "said that it is full",
                "full while",
                "all checkpoints valid",
                "nothing half done left",
                "run.json tells it too",
                "same weights when there was room",
            ),
            filled,
        )
    )
    broken = [row for row in (*damaged, *filled) if any(cell.startswith("NO") for cell in row)]
    print(f"\n{len(damaged) + len(filled) - len(broken)} of {len(damaged) + len(filled)} rows as promised.")
    sys.exit(1 if broken else 0)


def damage_table(place: Path) -> list[list[str]]:
    """Return a row for each damage to each file."""
    original = stopped(place / "original", 7, *OFTEN)
    assert steps_sealed(original) == [7, 5, 4]
    whole, rows = undisturbed(*WHOLE), []
    for what, damage in DAMAGES.items():
        for name in FILES:
            folder = copy_of(original, place / f"{what}-{name}")
            damage(folder / "checkpoints" / NEWEST / name)
            rows.append([what, name, *came_to(run(folder, *OFTEN), name, whole)])
    folder = copy_of(original, place / "emptied")
    for name in FILES:
        (folder / "checkpoints" / NEWEST / name).unlink()
    rows.append(["removed", "all of them", *came_to(run(folder, *OFTEN), "the folder is empty", whole)])
    return rows


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def halve(file: Path) -> None:
    """Cut a file in the middle."""
    os.truncate(file, file.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], object]] = {"truncated": halve, "one bit flipped": flip, "removed": Path.unlink}


def came_to(outcome: Outcome, part: str, whole: Numbers) -> list[str]:
    """Return what a run said of its damaged checkpoint, where it went on, and whether it came to the same numbers."""
    said = [
        line for line in outcome.output.splitlines() if SAID_OF_CHECKPOINTS in line and NEWEST in line and part in line
    ]
    went_on = [line for line in outcome.output.splitlines() if line.startswith("going on after step ")]
    same = outcome.code == 0 and numbers(outcome.folder) == whole
    return [
        said[0].partition(SAID_OF_CHECKPOINTS)[2] if said else "NO",
        went_on[0].partition(",")[0].removeprefix("going on after ") if went_on else "NO",
        "yes" if same else "NO",
    ]


def disk_rows(place: Path) -> Iterator[list[str]]:
    """Yield a row for one process and one for two."""
    for processes, sizes in ((1, SIZES), (2, SIZES[::6])):
        command = run_here if processes == 1 else run_on_two
        full = valid = left = word = same = 0
        # Nothing happens to this one.
        command(place / f"whole-{processes}")
        whole = numbers(place / f"whole-{processes}")
        during: set[str] = set()
        for size in sizes:
            with file_system(place / "small", size) as folder:
                code, said = command(folder)
                phase = [kind for kind, words in PLACES.items() if words in said]
                # A launcher turns every code but 0 into 1.
                full += (
                    code == (2 if processes == 1 else 1) and FULL in said and "Traceback" not in said and bool(phase)
                )
                during |= set(phase)
                found = sealed_folders(folder / "checkpoints")
                # Every byte is read and held against the seal; where there was room for none, nothing is shown.
                valid += bool(found) and all(map(is_valid, found))
                left += not left_half_done(folder)
                word += read_record(folder).get("status") in ("failed", "refused")
                subprocess.run(["mount", "-o", "remount,size=10m", str(folder.parent)], check=True)
                code, said = command(folder)
                same += code == 0 and numbers(folder) == whole
        yield [
            str(processes),
            f"{len(sizes)} of {sizes[0]} to {sizes[-1]} kB",
            told(full, len(sizes)),
            ", ".join(sorted(during)),
            told(valid, len(sizes)),
            told(left, len(sizes)),
            # Where no other byte finds room, `toolkit status` says that the run has died.
            f"{word} of {len(sizes)}",
            told(same, len(sizes)),
        ]


PLACES = {
    "beginning": "the run folder",
    "writing a checkpoint": "the checkpoint of step",
    "writing the ledger": "the ledger",
    "keeping run.json up to date": "can't be kept up to date",
}


def told(count: int, of: int) -> str:
    """Return how many are as promised."""
    return f"{count} of {of}" if count == of else f"NO: {count} of {of}"


def run_here(folder: Path) -> tuple[int, str]:
    """Run the long training in this process."""
    outcome = run(folder, *LONG)
    return outcome.code, outcome.errors


def run_on_two(folder: Path) -> tuple[int, str]:
    """Run it on two processes; return the launcher's code and what was said before the launcher speaks."""
    words = [*accelerate_launch(sys.executable, 2), "--main_process_port", "0", str(TINY), "--threads", "1", *LONG]
    done = subprocess.run(
        [*words, "--output", str(folder)], env=clean_environment(), capture_output=True, text=True, check=False
    )
    own, _, _ = done.stderr.partition("torch/distributed/elastic")
    return done.returncode, own


@contextmanager
def file_system(place: Path, size: int) -> Iterator[Path]:
    """Mount a small file system, and yield a run folder on it."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)], check=True)
    try:
        yield place / "run"
    finally:
        subprocess.run(["umount", str(place)], check=True)


if __name__ == "__main__":
    if shutil.which("unshare") is None:
        sys.exit("damage_matrix.py needs unshare (util-linux) to mount small file systems")
    main()
