"""Banking77 (77 intents) with a pre-trained encoder: test accuracy with one and two processes, and the pipeline.

    python benchmarks/accuracy/banking77.py --data path/to/banking77 --model path/to/all-MiniLM-L6-v2
        trains twice, about 10 minutes each on two cores, and compares the saved models with `transformers.pipeline`
    python benchmarks/accuracy/banking77.py --data ... --model ... --output runs/banking77
        again: finished runs are reported, only the comparison is made

The data folder holds train.csv and test.csv with the columns text and category; the model is a local folder. The
settings are those of a Transformers Trainer run that reached 0.927: lr 2e-4, 100 warm-up steps, linear decay, batch 32,
seed 0.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import accelerate_launch, machine, table

ROOT = Path(__file__).parents[2]
SETTINGS = ["--epochs", "4", "--optim.lr", "2e-4", "--optim.warmup", "100", "--optim.weight_decay", "0"]


def main() -> None:
    """Train on one and on two processes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/banking77"))
    arguments = parser.parse_args()
    rows = []
    for processes in (1, 2):
        output = arguments.output / f"{processes}-processes"
        recipe = [str(ROOT / "recipes" / "classify.py"), "--model.name", str(arguments.model), *data_of(arguments.data)]
        command = [*accelerate_launch(sys.executable, processes), *recipe, *SETTINGS, "--output", str(output)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        record = json.loads((output / "run.json").read_text(encoding="utf-8"))
        right, agreeing, total = pipeline_answers(output / "model", arguments.data / "test.csv")
        rows.append(
            [
                str(processes),
                f"{record['metrics']['accuracy']:.4f}",
                f"{record['baseline']['accuracy']:.4f}",
                f"{record['seconds']['training'] / 60:.1f}",
                f"{right / total:.4f}",
                f"{agreeing} of {total}",
            ]
        )
    print("# Banking77, four epochs\n")
    print(machine() + "\n")
    columns = ["processes", "test accuracy", "majority", "minutes", "accuracy of the pipeline", "same answers"]
    print(table(columns, rows))


def data_of(folder: Path) -> list[str]:
    """Return the flags that name the data."""
    return ["--data.name", str(folder), "--data.train", "train.csv", "--data.eval", "test.csv"]


def pipeline_answers(model: Path, test: Path) -> tuple[int, int, int]:
    """Return how many texts `transformers.pipeline` gets right and how often it agrees with the recipe, of how many."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    from toolkit.tasks.text_classification.data import LabelledTexts
    from toolkit.tasks.text_classification.texts import pad_texts

    tokenizer = AutoTokenizer.from_pretrained(model)
    module = AutoModelForSequenceClassification.from_pretrained(model).eval()
    names = [module.config.id2label[number] for number in range(module.config.num_labels)]
    # The recipe's own way to the answer: its reader, its tokens, its batches.
    texts = LabelledTexts(name=str(test.parent), train="train.csv", eval="test.csv", max_length=128).read(names)
    _, samples = texts.tokenize(tokenizer)
    collate, mine, wanted = pad_texts(tokenizer, texts.kind), [], []
    with torch.no_grad():
        for start in range(0, len(samples), 64):
            batch = dict(collate(samples.fetch(range(start, min(start + 64, len(samples))))))
            wanted += [names[label] for label in batch.pop("labels").tolist()]
            mine += [names[number] for number in module(**batch).logits.argmax(-1).tolist()]
    answer = pipeline("text-classification", str(model), truncation=True, batch_size=64)
    theirs = [found["label"] for found in answer(list(texts.evaluate.table["text"]))]
    right = sum(a == b for a, b in zip(theirs, wanted, strict=True))
    return right, sum(a == b for a, b in zip(theirs, mine, strict=True)), len(wanted)


if __name__ == "__main__":
    main()
