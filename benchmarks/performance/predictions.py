"""How many rows a second `toolkit predict` makes beside `transformers.pipeline`, and how much memory it takes.

    python benchmarks/performance/predictions.py --data path/to/data --model path/to/all-MiniLM-L6-v2
        an encoder on Banking77's test texts and on SQuAD's contexts, and a small one on 10^3 to 10^6 rows; 20 minutes
    python benchmarks/performance/predictions.py ... --rows 1000 10000 --rounds 1
        a part of it

Both classify the same texts with the same weights (the head is new: what comes out does not matter here), on one
thread, in float32, in batches of 32, in turns. The pipeline is called as its documentation shows: with all texts,
`batch_size=32` and `truncation=True`, so that a batch has the length of its longest text. Counted is the time of the
predictions, without loading. Memory is the most that is the process's own (RssAnon, read 20 times a second).
Exits with 1 if the toolkit makes less than twice the pipeline's rows, or takes 5% more memory for many rows than for
few.
"""

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path += [str(Path(__file__).parents[1] / "shared"), str(Path(__file__).parent)]

from machine import machine, table
from sample_memory import own_memory, write

BATCH, CLASSES = 32, 77
FASTER, MORE = 2.0, 1.05
SECONDS_BETWEEN_LOOKS = 0.05
PIPELINE = """
import csv, sys, time
import torch
from transformers import pipeline
torch.set_num_threads(1)
texts = [row["text"] for row in csv.DictReader(open(sys.argv[2], encoding="utf-8", newline=""))]
classify = pipeline("text-classification", sys.argv[1], device=-1)
classify(texts[:4], batch_size=4, truncation=True)
begun = time.perf_counter()
found = classify(texts, batch_size=int(sys.argv[3]), truncation=True)
print("SECONDS", time.perf_counter() - begun, len(found))
"""


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with banking77 and squad")
    parser.add_argument("--model", type=Path, required=True, help="the encoder")
    parser.add_argument("--rows", nargs="*", type=int, default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison; 0 leaves it out")
    arguments = parser.parse_args()
    print("# Predictions for files\n")
    print(machine() + "\n")
    fails = False
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = with_head(arguments.model, folder / "model")
        rows = []
        for name, texts in texts_of(arguments.data).items() if arguments.rounds else ():
            file = folder / f"{name}.csv"
            write_texts(file, texts)
            rates: dict[str, list[float]] = {"toolkit": [], "pipeline": []}
            for _ in range(arguments.rounds):
                rates["toolkit"].append(len(texts) / predict(model, file, folder / "out.csv")[0])
                rates["pipeline"].append(len(texts) / by_pipeline(model, file))
            middle = {method: statistics.median(found) for method, found in rates.items()}
            fails |= middle["toolkit"] < FASTER * middle["pipeline"]
            spread = [f"{middle[method]:.1f} ({min(found):.1f} to {max(found):.1f})" for method, found in rates.items()]
            rows.append([name, f"{len(texts):,}", *spread, f"{middle['toolkit'] / middle['pipeline']:.2f}"])
            print(*rows[-1], file=sys.stderr, flush=True)
        if rows:
            print(f"Rows a second on one thread, {arguments.rounds} rounds in turns, batches of {BATCH}:\n")
            print(table(["texts", "rows", "toolkit predict", "pipeline", "toolkit / pipeline"], rows))
        small, most = tiny_model(arguments.model, folder / "tiny"), []
        rows = []
        for count in arguments.rows:
            file = folder / "many.csv"
            write(file, count)
            seconds, peak = predict(small, file, folder / "out.csv")
            most.append(peak)
            rows.append([f"{count:,}", f"{peak / 1e6:.0f}", f"{count / seconds:,.0f}"])
            print(*rows[-1], file=sys.stderr, flush=True)
        if rows:
            fails |= max(most) > MORE * most[0]
            print("\nMemory of `toolkit predict` with a small encoder, csv in and out:\n")
            print(table(["rows", "most memory, MB", "rows a second"], rows))
    sys.exit(1 if fails else 0)


def texts_of(data: Path) -> dict[str, list[str]]:
    """Return texts of natural lengths: short questions, and paragraphs."""
    with (data / "banking77" / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {"Banking77": [row["text"] for row in rows]}
    squad = sorted((data / "squad").glob("*dev*.json")) if (data / "squad").is_dir() else []
    if squad:
        articles = json.loads(squad[0].read_text(encoding="utf-8"))["data"]
        found["SQuAD"] = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]][:600]
    return found


def write_texts(path: Path, texts: list[str]) -> None:
    """Write a csv file with a column of texts."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text"])
        writer.writerows([text] for text in texts)


def with_head(encoder: Path, folder: Path) -> Path:
    """Save an encoder with a new head."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    labels = {number: f"class {number}" for number in range(CLASSES)}
    model = AutoModelForSequenceClassification.from_pretrained(encoder, id2label=labels, num_labels=CLASSES)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


def tiny_model(encoder: Path, folder: Path) -> Path:
    """Save a new encoder of one small layer with the tokenizer of another."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = AutoConfig.from_pretrained(encoder, num_labels=2, id2label={0: "a", 1: "b"}, **sizes)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


def predict(model: Path, file: Path, output: Path) -> tuple[float, int]:
    """Return the seconds that the predictions took, and the most memory."""
    command = [sys.executable, "-m", "toolkit", "predict", str(model), str(file), "--output", str(output)]
    command += ["--threads", "1", "--batch", str(BATCH), "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    most = 0
    while process.poll() is None:
        most = max(most, own_memory(process.pid))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    assert process.stdout is not None
    printed = process.stdout.read()
    found = re.search(r"predicted ([\d,]+) rows in (\S+), ([\d,.]+) rows/s", printed)
    if process.returncode or found is None:
        sys.exit(printed)
    return int(found[1].replace(",", "")) / float(found[3].replace(",", "")), most


def by_pipeline(model: Path, file: Path) -> float:
    """Return the seconds that the pipeline takes."""
    command = [sys.executable, "-c", PIPELINE, str(model), str(file), str(BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(re.findall(r"SECONDS (\S+)", done.stdout)[0])


if __name__ == "__main__":
    main()
