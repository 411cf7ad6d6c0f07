"""Parquet files: read by pyarrow, types and all."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.data.formats.archive import archive_of, whole
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow


def source(path: Path) -> Any:
    """Return what `pyarrow.parquet` reads a file from: the path, or the content of a file in an archive."""
    return path if archive_of(path) is None else whole(path)


def read_parquet(path: Path) -> "pyarrow.Table":
    """Return the rows of a file; categories become their values, and an index that pandas wrote is left out."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        # Not parquet.read_table: it adds columns from folder names such as "language=en".
        table = parquet.ParquetFile(source(path)).read()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is no readable parquet file ({reason}); write or download it again") from error
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    table = table.cast(pa.schema(fields, table.schema.metadata))
    return table.drop_columns([name for name in table.column_names if name.startswith("__index_level_")])
