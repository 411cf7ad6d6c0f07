"""The points of a line, through an encoder of Transformers whose pooler is used for points above zero alone."""

from typing import Any

import torch
from line import Line, collate, squares
from line import task as line

from toolkit import Task, fine_tune


class Sometimes(torch.nn.Module):
    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.encoder = BertModel(BertConfig(vocab_size=4, max_position_embeddings=4, **sizes, **none))
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.encoder(inputs_embeds=x[:, None].expand(-1, 1, 8))
        states, above = found.last_hidden_state[:, 0], x > 0
        if above.any():
            states = states + found.pooler_output * above
        return self.head(states)  # type: ignore[no-any-return]


def in_float64(samples: list[float]) -> dict[str, torch.Tensor]:
    return {name: values.double() for name, values in collate(samples).items()}


def task(config: Line) -> Task:
    # The embeddings of words are of no use here: they are frozen in any case.
    def model(runtime: Any) -> torch.nn.Module:
        return Sometimes().double()

    return line(model=model, collate=in_float64, loss=lambda model, batch: squares(model, batch).sum())


if __name__ == "__main__":
    fine_tune(Line, task)
