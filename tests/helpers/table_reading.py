"""What the tests of tables share: a working folder of their own, and short words to write, read and refuse files."""

from pathlib import Path

import pytest

from toolkit.data.sources import Splits, read_splits
from toolkit.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(
    name: str | None = None, train: str | None = None, evaluate: str | None = None, config: str | None = None
) -> Splits:
    return read_splits(name=name, config=config, train=train, evaluate=evaluate)


def write(name: str, content: str | bytes = "text,label\na,1\n") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(match: str, **given: str | None) -> None:
    with pytest.raises(UserError, match=match):
        read(**given)
