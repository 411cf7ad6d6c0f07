"""The folder of somebody who works with the toolkit: data for each recipe, small models, and runs.

    python tests/helpers/users_folder.py FOLDER

makes it: `recipes/` and `accelerate_configs/` as in a clone, some data for each recipe, `models/`, and in `runs/` a
classifier that is finished (`reviews`), one that was stopped (`stopped`), a tagger (`tags`) and a chat model (`talk`).
"""

import json
import runpy
import sys
import threading
import time
from pathlib import Path

import small_answer
import small_chat
import small_classify_images
import small_prefer
import small_summarize
import small_tag
import small_translate

ROOT = Path(__file__).parents[2]
WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven"]
CLASSES = ["bad", "good", "mixed"]
# Six steps of small batches, on one thread, and no evaluation data but what is held out.
SHORT = ["--threads", "1", "--epochs", "null", "--steps", "6", "--batch.size", "8"]
RUNS = {
    "reviews": "classify.py --data.train reviews.csv --model.name models/encoder --checkpoint.every 3",
    "tags": "tag.py --data.train words.conll --model.name models/encoder",
    "talk": "chat.py --data.train chats.jsonl --model.name models/chat --generate.samples 2 --generate.tokens 4",
}
STOPPED = (
    "classify.py --data.train reviews.csv --model.name models/encoder --threads 1 --batch.size 8 --epochs null "
    "--steps 300 --checkpoint.every 100"
)


def make(folder: Path) -> None:
    """Make the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("recipes", "accelerate_configs"):
        (folder / name).symlink_to(ROOT / name)
    write_data(folder)
    save_models(folder / "models")


def text(number: int) -> str:
    """Return a few words; no two numbers below a thousand give the same."""
    return " ".join(WORDS[int(digit)] for digit in f"{number * 37 % 1000:03}")


def write_data(folder: Path) -> None:
    """Write data for each recipe."""
    reviews = [f"{text(number)},{CLASSES[number % 3]}" for number in range(40)]
    write(folder / "reviews.csv", ["text,label", *reviews[:30]])
    write(folder / "later.csv", ["text,label", *reviews[30:]])
    write(folder / "stars.csv", ["review,stars", *(f"{text(number)},{number % 5 + 1}" for number in range(40))])
    write(folder / "unlabelled.csv", ["text", *(text(number) for number in range(50, 60))])
    write(folder / "similar.csv", ["anchor,positive", *(f"{text(n)},{text(n + 500)}" for n in range(40))])
    write(folder / "book.txt", [f"{text(n)} {text(n + 100)} {text(n + 200)}." for n in range(200)])
    small_tag.write_conll(folder / "words.conll", small_tag.sentences(40, 0))
    write_rows(folder / "questions.jsonl", small_answer.questions(40, 0))
    write_rows(folder / "articles.jsonl", small_summarize.rows(40))
    write_rows(folder / "sentences.jsonl", small_translate.rows(40))
    write_rows(folder / "chats.jsonl", small_chat.conversations(40, 0))
    write_rows(folder / "pairs.jsonl", small_prefer.pairs(40))
    small_classify_images.write_images(folder / "photos", 30)
    write(folder / "run.yaml", ["data:", "  train: reviews.csv", "batch:", "  size: 8"])


def write(path: Path, lines: list[str]) -> None:
    """Write a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Write json lines."""
    write(path, [json.dumps(row, ensure_ascii=False) for row in rows])


def save_models(folder: Path) -> None:
    """Save an encoder, a model that writes, one that replies and one that sees, all with new weights."""
    import torch
    from conftest import save_tokenizer, tiny_bert
    from transformers import BertModel, T5Config, T5ForConditionalGeneration, ViTConfig, ViTModel

    torch.manual_seed(0)
    BertModel(tiny_bert()).save_pretrained(folder / "encoder")
    save_tokenizer(folder / "encoder")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    T5ForConditionalGeneration(T5Config(vocab_size=14, **sizes, eos_token_id=3)).save_pretrained(folder / "writer")
    save_tokenizer(folder / "writer")
    small_chat.save_llama(folder / "chat")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTModel(ViTConfig(**sizes, image_size=8, patch_size=4)).save_pretrained(folder / "eyes")


def stop_after(ledger: Path, rows: int) -> None:
    """Ask a run to stop once its ledger has so many rows."""
    while not ledger.is_file() or ledger.read_bytes().count(b"\n") < rows:
        time.sleep(0.001)
    ledger.with_name("STOP").touch()


if __name__ == "__main__":
    if sys.argv[1] == "stop":
        # python users_folder.py stop RECIPE ARGUMENT ...: a run that is stopped after some of its steps.
        sys.argv = sys.argv[2:]
        output = Path(sys.argv[sys.argv.index("--output") + 1])
        threading.Thread(target=stop_after, args=(output / "ledger.jsonl", 4), daemon=True).start()
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        make(Path(sys.argv[1]))
