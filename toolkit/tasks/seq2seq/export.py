"""The folder of a trained model with encoder and decoder, and a card that says how it writes texts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.models.export import pretrained_folder
from toolkit.models.lora import has_adapters
from toolkit.tasks.seq2seq.data import TextPairs

USE = """Use it so (Transformers 5 has no pipeline for it):

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer{more}

tokenizer = AutoTokenizer.from_pretrained("<this folder>")
model = AutoModelForSeq2SeqLM.from_pretrained("<this folder>")
texts = ["one text", "another text"]
inputs = tokenizer([{prefix!r} + text for text in texts], padding=True, truncation={truncation}, return_tensors="pt")
answers = tokenizer.batch_decode(model.generate(**inputs{settings}), skip_special_tokens=True)
print(answers)
```"""
# Of a folder with adapters alone Transformers takes the settings for generation of their base.
WHOLE = {"more": "", "settings": ""}
ADAPTERS = {
    "more": ", GenerationConfig",
    "settings": ', generation_config=GenerationConfig.from_pretrained("<this folder>")',
}


def seq2seq_folder(
    tokenizer: Any, data: TextPairs, title: str, pipeline_tag: str
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: `pretrained_folder` with the model's settings for generation.

    Args:
        tokenizer: is saved with it.
        data: says what stands before each source, and whether sources are truncated.
        title: the heading of the model card.
        pipeline_tag: the name of the task on the hub.
    """

    def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        alone = has_adapters(module) and not results["config"].model.lora.merge
        truncation = data.max_length is not None
        usage = USE.format(prefix=data.prefix, truncation=truncation, **(ADAPTERS if alone else WHOLE))
        pretrained_folder(tokenizer, data.max_length, title, pipeline_tag, usage)(module, folder, results)
        if alone:
            module.generation_config.save_pretrained(folder)

    return export
