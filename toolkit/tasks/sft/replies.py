"""Replies of a chat model: which samples are asked for one, how it is generated, and what is compared of it."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from toolkit.config.fields import at_least
from toolkit.data.labels import Array
from toolkit.data.reading import row_numbers
from toolkit.errors import UserError
from toolkit.metrics import Scores
from toolkit.task import Batch, Metric, Postprocessed, TaskData
from toolkit.tasks.sft.data import TokenizedChats
from toolkit.tasks.sft.tokens import TokenizedConversations, reply_span
from toolkit.text_metrics import named_text_metrics

DIGITS_APART = re.compile(r"(?<=\d),(?=\d{3})")


@dataclass(frozen=True)
class GenerateConfig:
    """The `generate` section: how replies are asked for in an evaluation."""

    tokens: int = 64
    """Let the model reply in evaluations, with at most so many tokens, without sampling; 0 measures the loss alone."""
    samples: int | None = 300
    """Ask for a reply to so many of the evaluation samples, spread over all of them; null asks all."""
    final_answer: str | None = None
    """What stands before the final answer in a reply, such as "####"; null compares whole replies."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from at_least(0, "generate.tokens", self.tokens)
        if self.samples is not None:
            yield from at_least(1, "generate.samples", self.samples)
        if self.final_answer is not None and not self.final_answer.strip():
            yield "generate.final_answer is blank; give what stands before a final answer, or leave it out"


class AskedConversations:
    """A `Source`: conversations, of which some are asked for a reply."""

    def __init__(self, source: TokenizedConversations, asked: set[int]) -> None:
        self.source = source
        self.asked = asked

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples, each with "asked"."""
        samples = self.source.fetch(ids)
        return [{**sample, "asked": int(number) in self.asked} for number, sample in zip(ids, samples, strict=True)]

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample (int64)."""
        return self.source.lengths(ids)

    def digest(self) -> str:
        """Return a hash of token ids and labels."""
        return self.source.digest()

    def worth_a_trial(self) -> list[int]:
        """Return the samples that are asked for a reply, or all where none is."""
        return sorted(self.asked) or list(range(len(self)))


class Replies:
    """Asks a model for replies to some evaluation samples, and compares them with the replies in the data."""

    def __init__(self, config: GenerateConfig, chats: TokenizedChats, tokenizer: Any, limit: int | None) -> None:
        """Choose the samples.

        `limit` is the most tokens that the model takes, if that is known.

        Raises:
            UserError: there is none with a whole reply, or their replies have no final answer.
        """
        self.config = config
        self.chats = chats
        self.tokenizer = tokenizer
        self.limit = limit
        ends = {*chats.train.ends_of_turns, *chats.evaluate.ends_of_turns, tokenizer.eos_token_id}
        self.stops = sorted(ends - {None})
        """The tokens that end a reply."""
        self.asked = self.choose() if config.tokens else []
        """The evaluation samples that are asked for a reply."""

    @property
    def data(self) -> TaskData:
        """The data of the task: evaluation samples know whether they are asked for a reply."""
        asked, count = AskedConversations(self.chats.evaluate, set(self.asked)), len(self.chats.evaluate)
        line = (
            f"{len(self.asked):,} of {count:,} evaluation samples are asked for one of at most "
            f"{self.config.tokens} tokens"
        )
        summary = {**self.chats.summary, **({"replies": line} if self.asked else {})}
        return TaskData(self.chats.train, asked, self.chats.files, self.chats.workers, summary, self.chats.inputs)

    def choose(self) -> list[int]:
        """Return which samples are asked for a reply."""
        source, config = self.chats.evaluate, self.config
        whole = np.flatnonzero(source.whole)  # a truncated one has no reply to compare with
        if not len(whole):
            raise UserError(
                f"{source.rows.name}: data.max_length truncates every conversation, so there is no whole reply to "
                "compare with; give more, or ask for no replies (--generate.tokens 0)"
            )
        count = len(whole) if config.samples is None else min(config.samples, len(whole))
        chosen: list[int] = whole[np.linspace(0, len(whole) - 1, count).round().astype(np.int64)].tolist()
        if config.final_answer:
            missing = [number for number in chosen if config.final_answer.strip() not in self.reference(number)]
            if missing:
                raise UserError(
                    f"{source.rows.name}: {row_numbers(source.row_numbers(missing))} whose last reply has no "
                    f"{config.final_answer!r} (generate.final_answer), so there is no answer to compare with; give "
                    "another mark, or leave it out"
                )
        return chosen

    @torch.no_grad()
    def predict(self, model: torch.nn.Module, batch: Batch) -> list[str]:
        """Return the reply to each sample that is asked for one, and an empty text for the others."""
        replies = [""] * len(batch["prompts"])
        groups: dict[int, dict[int, int]] = {}
        for row, prompt in enumerate(batch["prompts"].tolist()):
            if not prompt:
                continue
            # How long a reply may be follows from its own prompt, whatever else is in the batch.
            room = self.config.tokens if self.limit is None else min(self.config.tokens, self.limit - prompt)
            groups.setdefault(room, {})[row] = prompt
        for room, prompts in groups.items():
            for row, reply in self.generate(model, batch["input_ids"], prompts, room).items():
                replies[row] = reply
        return replies

    def generate(self, model: Any, ids: torch.Tensor, prompts: Mapping[int, int], room: int) -> dict[int, str]:
        """Return the replies to the first so many tokens of these rows; see `generated_replies`."""
        return generated_replies(model, ids, prompts, room, self.tokenizer, self.stops)

    def decoded(self, tokens: Sequence[int]) -> str:
        """Return tokens as text, up to the one that ends the turn."""
        return reply_text(tokens, self.tokenizer, self.stops)

    def postprocess(self, predictions: Mapping[int, str]) -> Postprocessed:
        """Return replies with those in the data, and as baseline the most frequent one in the training data."""
        asked = [number for number in self.asked if number in predictions]
        wanted = [self.reference(number) for number in asked]
        replies = [predictions[number] for number in asked]
        return Postprocessed(replies, wanted, [self.most_frequent] * len(wanted), samples=asked)

    def reference(self, number: int) -> str:
        """Return the last reply of an evaluation sample, as the model could emit it."""
        sample = self.chats.evaluate.fetch([number])[0]
        start, end = reply_span(np.array(sample["labels"]))
        return self.decoded(sample["input_ids"][start:end])

    @cached_property
    def most_frequent(self) -> str:
        """A training reply with the most frequent final answer: what a model would say that reads no prompt."""
        counts: Counter[str] = Counter()
        example: dict[str, str] = {}
        for batch in self.chats.train.rows.batches():
            for conversation in batch:
                reply = conversation[-1]["content"].strip()
                if (answer := final_answer(reply, self.config.final_answer)) is not None:
                    counts[answer] += 1
                    example.setdefault(answer, reply)
        return example[counts.most_common(1)[0][0]] if counts else ""

    def show(self, item: int, prediction: str, reference: str) -> dict[str, Any]:
        """Return what a reader sees of a reply."""
        source, number = self.chats.evaluate, self.asked[item]
        sample = source.fetch([number])[0]
        prompt = sample["input_ids"][: reply_span(np.array(sample["labels"]))[0]]
        row = int(source.row_numbers([number])[0]) + 1
        return {"row": row, "prompt": self.tokenizer.decode(prompt), "reply": prediction, "wanted": reference}

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of replies; none where no reply is asked for."""
        return [partial(final_answers, mark=self.config.final_answer)] if self.config.tokens else []

    @property
    def named_metrics(self) -> dict[str, Metric]:
        """The metrics of replies that evaluate.metrics can name; all but exact_match compare whole replies."""
        if not self.config.tokens:
            return {}
        alike = {metric: partial(beside_one, metric) for metric in named_text_metrics().values()}
        of_texts = {name: alike[metric] for name, metric in named_text_metrics().items()}
        return of_texts | {"exact_match": self.metrics[0]}


def beside_one(metric: Metric, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, float]:
    """Return the scores of a metric of texts with several references each, where they have one."""
    return metric(predictions, [[reference] for reference in references])


def generated_replies(
    model: Any, ids: torch.Tensor, prompts: Mapping[int, int], room: int, tokenizer: Any, stops: Sequence[int]
) -> dict[int, str]:
    """Return the replies to the first so many tokens of these rows, of at most `room` tokens, up to one of `stops`.

    They are padded on the left, so that each prompt is followed at once by its reply: the same at any batch size.
    """
    from transformers import GenerationConfig

    longest = max(prompts.values())
    given = ids.new_zeros((len(prompts), longest))
    mask = torch.zeros_like(given)
    for place, (row, length) in enumerate(prompts.items()):
        given[place, -length:], mask[place, -length:] = ids[row, :length], 1
    # The rest is the model's own: whoever asks the saved model without sampling gets the same replies.
    greedy = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=room,
        eos_token_id=list(stops),
        pad_token_id=stops[0],
        num_return_sequences=1,
        return_dict_in_generate=False,
    )
    asked = {"input_ids": given, "attention_mask": mask, "generation_config": greedy, "tokenizer": tokenizer}
    made = model.generate(**asked)[:, longest:]
    return {row: reply_text(tokens, tokenizer, stops) for row, tokens in zip(prompts, made.tolist(), strict=True)}


def reply_text(tokens: Sequence[int], tokenizer: Any, stops: Sequence[int]) -> str:
    """Return tokens as text, up to the one that ends the turn."""
    end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    text: str = tokenizer.decode(tokens[:end], skip_special_tokens=True)
    return text.strip()


def final_answers(predictions: Sequence[str], references: Sequence[str], mark: str | None) -> Scores:
    """Return the share of replies whose final answer is that of the reference, to the letter."""
    right = 0
    for prediction, reference in zip(predictions, references, strict=True):
        answer = final_answer(prediction, mark)
        right += answer is not None and answer == final_answer(reference, mark)
    return {"exact_match": right / len(references)}


def final_answer(reply: str, mark: str | None) -> str | None:
    """Return what is compared of a reply: all of it, or the rest of the line after the last `mark`.

    After a mark 1,000 counts as 1000 and a full stop at the end for nothing, as GSM8K is scored (arXiv 2110.14168).
    A reply without the mark has no final answer: None.
    """
    if mark is None:
        return reply.strip()
    _, found, rest = reply.rpartition(mark.strip())
    if not found:
        return None
    return DIGITS_APART.sub("", rest.strip().partition("\n")[0]).strip().removesuffix(".")


def unigram_scores(chats: TokenizedChats, vocabulary: int) -> dict[str, float]:
    """Return loss and perplexity of a model that knows how frequent each token is in replies, and nothing else."""
    counts = chats.train.label_counts(vocabulary) + 1
    wanted = chats.evaluate.label_counts(vocabulary)
    loss = float(-(wanted * np.log(counts / counts.sum())).sum() / wanted.sum())
    return {"loss": loss, **perplexity(loss, 1)}


def perplexity(loss: float, units: float) -> dict[str, float]:
    """Return the perplexity that follows from the mean loss of a token."""
    return {"perplexity": math.exp(loss) if loss < 700 else math.inf}
