"""What a trained model is asked: `toolkit predict` and `toolkit chat`."""

import argparse
import os
from pathlib import Path
from typing import Any

from toolkit.errors import DONE, USER_CAN_FIX, UserError


def add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict",
        help="predict the rows of a file with a trained model",
        description="Write the rows of a file with what a model predicts of each, in their order: classes, numbers, "
        "tags, answers, texts, replies, vectors. Read are csv, tsv, json, json lines, parquet, CoNLL, text (a row a "
        "line) and folders of images. After a kill the same command goes on. In several processes: accelerate launch "
        "--config_file FILE --num_processes N -m toolkit predict ...; the output is the same.",
    )
    predict.set_defaults(command=predict_rows)
    predict.add_argument("model", metavar="MODEL", help="a run folder, a model folder or a hub id")
    predict.add_argument("file", type=Path, metavar="FILE", help="the rows")
    predict.add_argument(
        "--output", type=Path, required=True, metavar="OUT", help="a file that ends with .csv, .tsv, .jsonl or .parquet"
    )
    predict.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="PART=COLUMN",
        help="which column is what, such as text=review, where FILE names it in another way than the training data",
    )
    predict.add_argument("--scores", action="store_true", help="the scores of all classes, not of the predicted alone")
    predict.add_argument("--tokens", type=int, metavar="N", help="the longest text that is written, in tokens")
    predict.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help="of several labels predict those with a probability above it (default: the thresholds that the model was "
        "saved with)",
    )
    predict.add_argument("--batch", type=int, default=32, metavar="N", help="samples at once (default: 32)")
    predict.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float64"], default="float32", help="of the weights"
    )
    predict.add_argument(
        "--header",
        metavar="NAMES",
        help='of csv, tsv and Excel: true, false, or the names of the columns in their order, such as "[id, text]" '
        "(default: as in the training, where FILE has none of its own)",
    )
    predict.add_argument("--threads", type=int, metavar="N", help="threads of torch in each process")
    predict.add_argument("--overwrite", action="store_true", help="replace OUT, and throw away what was begun for it")


def predict_rows(given: argparse.Namespace) -> int:
    """Predict the rows of a file and return the exit code."""
    from toolkit.recipe_command import report

    # On CPUs oneDNN keeps the code that it makes for each shape of a batch, and 1,024 of them take 40 MB.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    try:
        columns = dict(entry.split("=", 1) for entry in given.column if "=" in entry)
        if wrong := [entry for entry in given.column if not all(entry.partition("=")[::2])]:
            raise UserError(f"--column is {wrong[0]!r}; give PART=COLUMN, such as text=review")
        from toolkit.predict.command import predict
        from toolkit.predict.forms import header_of
        from toolkit.predict.wish import Wish

        wish = {name: getattr(given, name) for name in ("model", "file", "output", "scores", "tokens", "batch")}
        wish |= {name: getattr(given, name) for name in ("dtype", "threads", "overwrite", "threshold")}
        predict(Wish(**wish, columns=columns, header=header_of(given.header)))
    except UserError as error:
        report("toolkit predict", None, error)
        return USER_CAN_FIX
    return DONE


def add_chat(commands: Any) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a trained model in the terminal",
        description="Talk to a model that was trained to reply. Replies appear word by word; an empty line ends.",
    )
    chat.set_defaults(command=talk)
    chat.add_argument("model", metavar="MODEL", help="a run folder, a model folder or a hub id")
    chat.add_argument("--system", metavar="TEXT", help="the system message")
    chat.add_argument("--tokens", type=int, metavar="N", help="the longest reply, in tokens (default: 512)")
    chat.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="chance in replies (default: 0, none)"
    )
    chat.add_argument("--seed", type=int, default=0, metavar="N", help="of that chance")
    chat.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the weights")


def talk(given: argparse.Namespace) -> int:
    """Talk to a model and return the exit code."""
    from toolkit.predict.chat import Talk, chat

    problems = []
    if given.tokens is not None and given.tokens < 1:
        problems.append(f"--tokens is {given.tokens}; it must be 1 or greater")
    if not given.temperature >= 0:
        problems.append(f"--temperature is {given.temperature}; it must be 0 or greater")
    if problems:
        raise UserError(*problems)
    names = ("model", "system", "tokens", "temperature", "seed", "dtype")
    chat(Talk(**{name: getattr(given, name) for name in names}))
    return DONE
