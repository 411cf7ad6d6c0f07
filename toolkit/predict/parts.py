"""What has been predicted of a file so far: a small file for each block of rows; no kill loses more than one."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.output.run_folder import write_whole


class Parts:
    """The predictions of the blocks of a file, in a folder beside the output."""

    def __init__(self, output: Path) -> None:
        self.folder = output.with_name(f"{output.name}.parts")

    def begin(self, made_of: Mapping[str, Any], overwrite: bool) -> int:
        """Prepare the folder, in the main process; return how many blocks it holds already.

        Args:
            made_of: everything that predictions follow from.
            overwrite: whether to throw away predictions of something else.

        Raises:
            UserError: it holds those.
        """
        manifest = self.folder / "manifest.json"
        if manifest.is_file() or any(self.folder.glob("block-*.json")):
            try:
                before = json.loads(manifest.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                before = {}
            differ = [name for name in made_of if before.get(name) != made_of[name]]
            if differ and not overwrite:
                raise UserError(
                    f"{self.folder} holds predictions that were begun with another {' and another '.join(differ)}; "
                    "give --overwrite to throw them away, or another --output"
                )
            if differ:
                shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(manifest, json.dumps(made_of, indent=2) + "\n")
        return sum(1 for _ in self.folder.glob("block-*.json"))

    def place(self, number: int) -> Path:
        """Return the file of a block."""
        return self.folder / f"block-{number:07d}.json"

    def has(self, number: int) -> bool:
        """Return whether a block has been predicted."""
        return self.place(number).is_file()

    def write(
        self, number: int, predictions: Mapping[int, Mapping[str, Any]], remarks: Mapping[str, Sequence[int]]
    ) -> None:
        """Write the predictions of a block, by the place of the row in it, and what is to be said of rows."""
        content = {"predictions": {str(row): values for row, values in predictions.items()}, "remarks": remarks}
        write_whole(self.place(number), json.dumps(content, ensure_ascii=False))

    def read(self, number: int) -> tuple[dict[int, dict[str, Any]], dict[str, list[int]]]:
        """Return what was written of a block."""
        content = json.loads(self.place(number).read_text(encoding="utf-8"))
        return {int(row): values for row, values in content["predictions"].items()}, content["remarks"]

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
