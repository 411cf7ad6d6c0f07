"""The recipe for chat models: which tokens carry loss, the layouts of data, what is refused, and what is saved."""

import json
import re
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from recipe_layouts import load_recipe
from small_chat import CHATML, arguments, chat_tokenizer, conversations, save_llama, write_rows
from trial import Outcome, run_here

from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.models.changes import settle_generation
from toolkit.models.tokenizer import tokenizer
from toolkit.tasks.conversations.template import CHAT
from toolkit.tasks.sft.data import Conversations
from toolkit.tasks.sft.replies import GenerateConfig, Replies
from toolkit.tasks.sft.tokens import pad_conversations, reply_span

LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}<|header|>{{ message['role'] }}<|/header|>\n\n"
    "{{ message['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}"
)
# The role is called otherwise, the system message goes into the first turn, and what is said is stripped.
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set turns = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{{ first if loop.first else '' }}{{ message.content | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
# Tags that leave out the mark that ends the turn, as many published templates do.
TAGGED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What the assistant thought is shown in the last turn alone.
FORGETFUL = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content if loop.last else message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LONG_TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "It is blue."},
    {"role": "assistant", "content": "It is blue."},
    {"role": "user", "content": "Größe? 日本"},
    {"role": "assistant", "content": " Sí, 日本 👍🏽.\n"},
    {"role": "user", "content": "assistant\n"},
    {"role": "assistant", "content": "user\n\nYes"},
]


@pytest.fixture(scope="module")
def chat() -> ModuleType:
    return load_recipe("chat")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small causal model with a tokenizer and a template."""
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def run(chat: ModuleType, tmp_path: Path) -> Any:
    """Runs the recipe in this process, with the run folder tmp_path/run."""

    def run(*words: str | Path) -> Outcome:
        return run_here(chat.Chat, chat.task, ["--threads", "1", *map(str, words)], tmp_path / "run")

    return run


def carrying(tokens: Any, template: str, rows: list[Any], folder: Path, loss_on: str = "all") -> list[list[str]]:
    """Return the texts of the unbroken runs of tokens that carry loss, for each conversation."""
    data = Conversations(
        train=str(write_rows(folder / "rows.jsonl", [{"messages": row} for row in rows])), held_out=0.5, loss_on=loss_on
    )
    assert tokens.chat_template == template
    tokenized = data.read().tokenize(tokens, ModelConfig(), None)
    found: dict[int, list[str]] = {}
    for source in (tokenized.train, tokenized.evaluate):
        for number, sample in enumerate(source.fetch(range(len(source)))):
            runs: list[list[int]] = [[]]
            for token, label in zip(sample["input_ids"], sample["labels"], strict=True):
                assert label in (token, NOT_COUNTED)
                if label == NOT_COUNTED:
                    runs.append([])
                else:
                    runs[-1].append(token)
            found[int(source.row_numbers([number])[0])] = [tokens.decode(one) for one in runs if one]
    return [found[number] for number in sorted(found)]


SHORT_TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "It is red."}]


@pytest.mark.parametrize(
    ("template", "replies", "short"),
    [
        (
            CHATML,
            ["It is blue.<|im_end|>", " Sí, 日本 👍🏽.\n<|im_end|>", "user\n\nYes<|im_end|>"],
            "It is red.<|im_end|>",
        ),
        (LLAMA_3, ["It is blue.<|eot|>", "Sí, 日本 👍🏽.<|eot|>", "user\n\nYes<|eot|>"], "It is red.<|eot|>"),
        (GEMMA, ["It is blue.</turn>", "Sí, 日本 👍🏽.</turn>", "user\n\nYes</turn>"], "It is red.</turn>"),
        (
            TAGGED,
            ["It is blue.<|im_end|>", " Sí, 日本 👍🏽.\n<|im_end|>", "user\n\nYes<|im_end|>"],
            "It is red.<|im_end|>",
        ),
    ],
    ids=["chatml", "llama-3", "gemma", "tagged"],
)
def test_exactly_the_replies_carry_loss_with_the_mark_that_ends_the_turn(
    template: str, replies: list[str], short: str, tmp_path: Path
) -> None:
    tokens = chat_tokenizer(template, "</s>")
    assert carrying(tokens, template, [LONG_TALK, SHORT_TALK, LONG_TALK], tmp_path) == [replies, [short], replies]
    assert carrying(tokens, template, [LONG_TALK, SHORT_TALK], tmp_path, "last") == [replies[-1:], [short]]


def test_the_embedded_template_with_its_own_tokenizer(tmp_path: Path) -> None:
    tokens = tokenizer(ModelConfig(), [message["content"] for message in LONG_TALK], "long talk", CHAT)
    expected = ["It is blue.<end>", "Sí, 日本 👍🏽.<end>", "user\n\nYes<end>"]
    assert carrying(tokens, CHAT.chat_template, [LONG_TALK] * 2, tmp_path) == [expected] * 2


def test_a_token_across_the_beginning_of_a_reply_carries_loss(tmp_path: Path) -> None:
    """Here the prompt ends with a blank that the tokenizer joins to the first word of the reply."""
    template = (
        "{% for message in messages %}{% if message.role == 'user' %}{{ message.content }}? {% else %}"
        "{{ message.content }}"
        "</s>{% endif %}{% endfor %}"
    )
    tokens = chat_tokenizer(template, "</s>")
    assert carrying(tokens, template, [SHORT_TALK] * 2, tmp_path)[0] in (["It is red.</s>"], [" It is red.</s>"])


def test_the_loss_is_the_sum_over_these_tokens(chat: ModuleType, llama: Path, tmp_path: Path) -> None:
    """Against the same sum taken token by token, without padding."""
    from transformers import AutoModelForCausalLM

    train = write_rows(tmp_path / "rows.jsonl", conversations(12, 5))
    config = chat.Chat(model=ModelConfig(name=str(llama), dtype="float64"), data=Conversations(train=str(train)))
    made = chat.task(config)
    samples = made.data.train.fetch(range(len(made.data.train)))
    batch = made.collate(samples)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64)
    expected, count = torch.zeros((), dtype=torch.float64), 0
    for sample in samples:
        ids = torch.tensor(sample["input_ids"])
        chances = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        for place in range(1, len(ids)):
            if sample["labels"][place] != NOT_COUNTED:
                expected -= chances[place - 1, ids[place]].detach()
                count += 1
    assert made.units(batch) == count
    assert made.loss(model, batch).item() == pytest.approx(float(expected), rel=1e-12)
    filler = {"input_ids": 0, "attention_mask": 0, "labels": NOT_COUNTED}
    wider = {name: torch.nn.functional.pad(batch[name], (0, 7), value=value) for name, value in filler.items()}
    wider = {**batch, **wider}
    assert made.loss(model, wider).item() == pytest.approx(float(expected), rel=1e-12)


def rows_of(layout: str) -> list[dict[str, Any]]:
    pairs = [(f"{number} and 1?", f"{number + 1}") for number in range(6)]
    return {
        "messages": [
            {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in pairs
        ],
        "conversations": [
            {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in pairs
        ],
        "prompt": [{"prompt": q, "completion": a} for q, a in pairs],
        "alpaca": [{"instruction": "Add", "input": q, "output": a, "text": "ignored"} for q, a in pairs],
        "gsm8k": [{"question": q, "answer": a} for q, a in pairs],
        "parts": [
            {
                "prompt": [{"role": "user", "content": [{"type": "text", "text": q}]}],
                "completion": [{"role": "assistant", "content": a}],
            }
            for q, a in pairs
        ],
        "system": [{"system": "Add." if q[0] != "3" else "", "prompt": q, "response": a} for q, a in pairs],
    }[layout]


@pytest.mark.parametrize("layout", ["messages", "conversations", "prompt", "alpaca", "gsm8k", "parts", "system"])
def test_layouts(layout: str, tmp_path: Path) -> None:
    chats = Conversations(train=str(write_rows(tmp_path / "rows.jsonl", rows_of(layout))), held_out=0.2).read()
    first = next(chats.train.batches())
    question = {"alpaca": "Add\n\n0 and 1?"}.get(layout, "0 and 1?")
    expected = [{"role": "user", "content": question}, {"role": "assistant", "content": "1"}]
    if layout == "system":
        expected.insert(0, {"role": "system", "content": "Add."})
        assert [len(conversation) for conversation in first].count(2) + [
            len(c) for c in next(chats.evaluate.batches())
        ].count(2) == 1
    assert first[0] == expected
    assert len(chats.train) + len(chats.evaluate) == 6


def test_every_kind_of_bad_row_is_told_together_with_its_numbers(run: Any, tmp_path: Path) -> None:
    def talk(*turns: tuple[str, str | None]) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": content} for role, content in turns]}

    good = talk(("user", "a"), ("assistant", "b"))
    rows = [
        good,
        talk(("user", "a")),
        talk(("user", "a"), ("assistant", "b"), ("user", "c")),
        talk(("user", "a"), ("user", "b"), ("assistant", "c")),
        talk(("user", "a"), ("system", "b"), ("assistant", "c")),
        talk(("assistant", "a"), ("user", "b"), ("assistant", "c")),
        talk(("user", "a"), ("wizard", "b")),
        talk(("user", " "), ("assistant", "b")),
        talk(("user", "a"), ("assistant", None)),
        {"messages": None},
        talk(("user", "a"), ("wizard", "b")),
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    run("--data.train", data).refused(
        "1 row (number 2, counted from 1 after any head line) without a turn of the assistant",
        "1 row (number 3, counted from 1 after any head line) that end with the user",
        "1 row (number 4, counted from 1 after any head line) with two turns of the user in a row",
        "1 row (number 5, counted from 1 after any head line) where a system message is not the first one",
        "1 row (number 6, counted from 1 after any head line) that the assistant begins",
        "2 rows (numbers 7, 11, counted from 1 after any head line) with the role 'wizard'; known are system",
        "1 row (number 8, counted from 1 after any head line) where a message of the user is empty",
        "1 row (number 9, counted from 1 after any head line) where a message of the assistant is empty",
        "1 row (number 10, counted from 1 after any head line) without a list of messages",
    )
    chats = Conversations(train=str(write_rows(tmp_path / "two.jsonl", [*rows, good])), drop_invalid=True).read()
    assert chats.train.rows.tolist() + chats.evaluate.rows.tolist() in ([0, 11], [11, 0])
    assert "10 of the training data" in chats.summary["dropped"]


def test_templates_that_can_not_be_used_are_refused(run: Any, llama: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [{"messages": SHORT_TALK}, {"messages": LONG_TALK[1:]}] * 2)
    thought = [{**m, "content": f"hm</think>{m['content']}"} if m["role"] == "assistant" else m for m in LONG_TALK]
    thinking = write_rows(tmp_path / "thinking.jsonl", [{"messages": thought}] * 2)
    named = ["--model.name", llama, "--data.train", data]

    def template(text: str) -> list[str]:
        (tmp_path / "chat.jinja").write_text(text, encoding="utf-8")
        return ["--data.chat_template", str(tmp_path / "chat.jinja")]

    bare = save_llama(tmp_path / "bare", None)
    run("--model.name", bare, "--data.train", data).refused("has no chat template", "--data.chat_template chat.jinja")
    run(*named, "--data.chat_template", "nowhere.jinja").told("'nowhere.jinja', but there is no such file")
    run(*named, *template("{% for")).refused("is no template that can be used")
    run(*named, *template(CHATML.replace("<|im_end|>", ""))).refused(
        "no mark of the tokenizer's own after the last reply", "(number"
    )
    run(*named, *template("{{ raise_exception('no turns') }}")).refused(
        "that the chat template does not take (no turns)"
    )
    run("--model.name", llama, "--data.train", thinking, *template(FORGETFUL)).refused(
        "where message 3 is shown in another way once later turns follow", "--data.loss_on last", "1 row (number"
    )
    run(
        "--model.name",
        llama,
        "--data.train",
        thinking,
        *template(FORGETFUL),
        "--data.loss_on",
        "last",
        "--data.max_length",
        "12",
    ).refused("data.max_length 12 truncates every conversation before its first reply")


def test_long_conversations_are_refused_or_truncated_and_counted(
    run: Any, chat: ModuleType, llama: Path, tmp_path: Path
) -> None:
    def talk(words: int, replied: int) -> dict[str, Any]:
        return {"prompt": "It is blue. " * words, "completion": "It is red. " * replied}

    train = write_rows(tmp_path / "rows.jsonl", [talk(1, 1), talk(1, 90), talk(90, 1), talk(2, 1)])
    held_out = write_rows(tmp_path / "held.jsonl", [talk(1, 1), talk(1, 30), talk(20, 1)])
    named = ["--model.name", llama, "--data.train", train, "--data.eval", held_out]
    run(*named).refused("2 rows (numbers 2, 3, counted from 1", "longer than the 128 tokens", "--data.max_length 128")
    run(*named, "--data.max_length", "129").refused("the model takes at most 128 tokens")
    run(*named, "--data.max_length", "20").refused(
        "data.max_length 20 truncates every conversation before its first reply"
    )
    config = chat.Chat(
        model=ModelConfig(name=str(llama)), data=Conversations(train=str(train), eval=str(held_out), max_length=60)
    )
    made = chat.task(config)
    assert (
        "4 of 7 conversations truncated to 60, and 2 left out of which no reply is left" in made.data.summary["lengths"]
    )
    assert (len(made.data.train), len(made.data.evaluate)) == (3, 2)
    assert made.data.train.lengths([0, 1, 2]).max() == 60
    # The one that was truncated is not asked for a reply: there is no whole one to compare with.
    assert [sample["asked"] for sample in made.data.evaluate.fetch([0, 1])] == [True, False]


def test_a_vocabulary_that_does_not_fit(run: Any, tmp_path: Path) -> None:
    small = save_llama(tmp_path / "small", vocabulary=200)
    data = write_rows(tmp_path / "rows.jsonl", conversations(6, 0))
    run("--model.name", small, "--data.train", data).refused("but the model only 200")


def test_columns_that_are_missing(run: Any, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": "a", "reward": 1}] * 2)
    run("--data.train", data).refused("what the assistant is to say", "--data.completion COLUMN")
    run("--data.train", data, "--data.messages", "prompt", "--data.completion", "x").refused("give one or the other")


def test_replies_are_the_same_at_any_batch_size_and_those_of_the_pipeline(
    run: Any, chat: ModuleType, tmp_path: Path
) -> None:
    """The model is trained until its replies are more than noise; then each way of asking gives the same ones."""
    from transformers import AutoTokenizer, pipeline

    train = write_rows(tmp_path / "train.jsonl", conversations(120, 0))
    flags = ["--data.train", str(train), "--epochs", "null", "--steps", "60", "--batch.size", "16"]
    flags += ["--optim.lr", "1e-2", "--generate.tokens", "16", "--data.held_out", "0.2", "--checkpoint.every", "1000"]
    outcome: Outcome = run(*flags).done()
    record = outcome.record
    assert record["metrics"]["exact_match"] > 0.5 > record["baseline"]["exact_match"]
    assert record["metrics"]["perplexity"] == pytest.approx(
        torch.tensor(record["metrics"]["loss"]).exp().item(), rel=1e-6
    )
    assert record["metrics"]["loss"] < record["baseline"]["loss"]
    shown = [
        json.loads(line) for line in (outcome.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert all(line["prompt"].endswith("<|assistant|>") and line["wanted"].startswith("It is ") for line in shown)
    given = train.read_text(encoding="utf-8").splitlines()
    assert all(line["wanted"] in given[line["row"] - 1] for line in shown)

    model = outcome.folder / "model"
    config = chat.Chat(
        model=ModelConfig(name=str(model), dtype="float64"), data=Conversations(train=str(train), held_out=0.2)
    )
    made = chat.task(config)
    asked = pipeline("text-generation", str(model), dtype=torch.float64)
    samples = made.data.evaluate.fetch(range(len(made.data.evaluate)))
    singly = [made.predict(asked.model, made.collate([sample]))[0] for sample in samples]
    assert made.predict(asked.model, made.collate(samples)) == singly
    assert len(set(singly)) > 2
    rows = [
        conversation
        for batch in Conversations(train=str(train), held_out=0.2).read().evaluate.batches()
        for conversation in batch
    ]
    for conversation, reply in zip(rows, singly, strict=True):
        answer = asked(conversation[:-1], do_sample=False, max_new_tokens=64)[0]["generated_text"][-1]
        assert answer == {"role": "assistant", "content": reply}
    right = sum(reply == row[-1]["content"] for reply, row in zip(singly, rows, strict=True)) / len(rows)
    assert right == pytest.approx(record["metrics"]["exact_match"])
    assert AutoTokenizer.from_pretrained(model).chat_template == CHAT.chat_template

    again: Outcome = run_here(
        chat.Chat, chat.task, [*flags, "--evaluate.only", "--threads", "1"], outcome.folder
    ).done()
    again.says(f"{record['metrics']['exact_match']:.4f}", f"{record['metrics']['loss']:.4f}")


def test_the_small_run(run: Any, tmp_path: Path) -> None:
    metrics = run(*arguments(tmp_path)).done().record["metrics"]
    assert set(metrics) == {"loss", "perplexity", "exact_match"}


def test_no_reply_is_asked_for_where_none_is_wanted(chat: ModuleType, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", conversations(9, 0))
    made = chat.task(chat.Chat(data=Conversations(train=str(train)), generate=GenerateConfig(tokens=0)))
    assert (made.predict, made.postprocess, list(made.metrics)) == (None, None, [])


def test_final_answers_as_gsm8k_scores_them(tmp_path: Path) -> None:
    from toolkit.tasks.sft.replies import final_answer, final_answers

    def official(reply: str) -> str:
        """The rule of its authors: a number after the mark, commas left out."""
        found = re.search(r"#### (\-?[0-9\.\,]+)", reply)
        return found.group(1).strip().replace(",", "") if found else "[invalid]"

    wanted = ["so 5 #### 5", "#### 1,000", "#### -3", "#### 72", "#### 0.5", "x #### 12"]
    given = ["#### 5", "a\n#### 1000\nmore", "#### 3", "72", "#### 0.5", "#### 10 no\n#### 12"]
    judged = [
        official(reply) != "[invalid]" and official(reply) == official(want)
        for reply, want in zip(given[:5], wanted, strict=False)
    ]
    assert final_answers(given[:5], wanted[:5], "#### ")["exact_match"] == sum(judged) / 5 == 0.6
    assert final_answer(given[5], "####") == "12"
    assert final_answers(["a ", "b"], ["a", "B"], None)["exact_match"] == 0.5


def test_data_without_the_final_answers_that_are_asked_for(run: Any, tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"=> {n}" if n % 2 else "none"} for n in range(10)]
    held = write_rows(tmp_path / "held.jsonl", rows)
    run("--data.train", held, "--data.eval", held, "--generate.final_answer", "=>").refused(
        "5 rows (numbers 1, 3, 5, 7, 9, counted from 1", "has no '=>' (generate.final_answer)"
    )


def test_the_baseline_is_the_most_frequent_final_answer(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"because {n} #### {n % 3 or 1}"} for n in range(30)]
    chats = Conversations(train=str(write_rows(tmp_path / "rows.jsonl", rows)), held_out=0.3).read()
    tokens = chat_tokenizer()
    tokenized = chats.tokenize(tokens, ModelConfig(), None)
    replies = Replies(GenerateConfig(final_answer="####"), tokenized, tokens, None)
    finished = replies.postprocess(dict.fromkeys(replies.asked, "#### 2"))
    assert finished.baseline is not None
    assert {one.rpartition("#### ")[2] for one in finished.baseline} == {"1"}
    assert [one.partition("because ")[0] for one in finished.references] == [""] * 9
    batch = pad_conversations(tokenized.evaluate.fetch([0]))
    start, end = reply_span(batch["labels"][0].numpy())
    assert tokens.decode(batch["input_ids"][0, start:end]).startswith("because ")


@pytest.fixture(scope="module")
def settings_of(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Copies the small model with other settings for generation."""

    def copied(name: str, **settings: Any) -> Path:
        folder = Path(shutil.copytree(llama, tmp_path_factory.mktemp("models") / name))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **settings}), encoding="utf-8")
        return folder

    return copied


SHORT = "--epochs null --steps 2 --batch.size 8 --generate.tokens 6 --generate.samples 3 --model.dtype float64"


@pytest.mark.parametrize("flags", [[], ["--model.lora.rank", "2", "--model.lora.merge", "true"]], ids=["all", "lora"])
def test_settings_of_sampling_without_sampling_are_left_out_and_told(
    run: Any, settings_of: Any, tmp_path: Path, flags: list[str]
) -> None:
    # Those of Vicuna and of older copies of Llama 2. Transformers doesn't save them once anything in them is changed.
    model = settings_of("vicuna", temperature=0.9, top_p=0.6, max_length=4096, pad_token_id=-1)
    data = write_rows(tmp_path / "rows.jsonl", conversations(30, 0))
    outcome: Outcome = run("--model.name", model, "--data.train", data, *SHORT.split(), *flags).done()
    outcome.says("its pad_token_id -1, temperature 0.9, top_p 0.6 count for nothing", "are left out")
    saved = json.loads((outcome.folder / "model" / "generation_config.json").read_text(encoding="utf-8"))
    assert not {"temperature", "top_p"} & set(saved)
    assert saved["max_length"] == 4096


def test_the_trial_of_the_end_asks_for_replies_wherever_they_are_asked_for(run: Any, tmp_path: Path) -> None:
    """Not among the longest conversations, which it would try otherwise."""
    rows = [{"prompt": "red " * (1 + number % 7), "completion": "blue"} for number in range(40)]
    rows += [{"prompt": "red " * 40, "completion": "blue"} for _ in range(8)]
    train, held_out = (write_rows(tmp_path / f"{name}.jsonl", rows) for name in ("train", "eval"))
    flags = [word for word in SHORT.split() if not word.startswith("float")][:-1]
    run("--data.train", train, "--data.eval", held_out, *flags).done().says("exact_match")


def test_replies_are_those_of_the_saved_model_with_its_own_settings(run: Any, settings_of: Any, tmp_path: Path) -> None:
    from transformers import pipeline

    data = write_rows(tmp_path / "rows.jsonl", conversations(30, 0))
    own = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 2, "return_dict_in_generate": True}
    model = settings_of("careful", **own, stop_strings=["#"], do_sample=True, num_return_sequences=2, temperature=0.7)
    long = SHORT.replace("--generate.tokens 6", "--generate.tokens 30").split()
    outcome: Outcome = run("--model.name", model, "--data.train", data, *long).done()
    outcome.says("with the model's own repetition_penalty 5.0, no_repeat_ngram_size 2, stop_strings ['#']")
    lines = (outcome.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    folder, replies = outcome.folder / "model", [json.loads(line) for line in lines]
    (folder / "generation_config.json").write_text(
        json.dumps({**own, "return_dict_in_generate": False, "eos_token_id": [2, 4]}), encoding="utf-8"
    )
    asked = pipeline("text-generation", str(folder), dtype=torch.float64)
    asking = {"do_sample": False, "max_new_tokens": 30, "return_full_text": False}
    plain = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    changed = False
    for line in replies:
        answer = asked(line["prompt"], **asking)[0]["generated_text"]
        assert answer.strip() == line["reply"]
        changed |= asked(line["prompt"], **asking, **plain)[0]["generated_text"] != answer
    # They are at work: without them the untrained model repeats itself.
    assert changed


def test_settings_for_generation_that_can_not_be(run: Any, settings_of: Any, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", conversations(30, 0))
    wrong = settings_of("wrong", num_return_sequences=3)
    run("--model.name", wrong, "--data.train", data).refused(
        f"the generation_config.json of {wrong} holds what can't be (Greedy methods", "correct it"
    )


def test_models_that_do_not_continue_texts_are_told_as_such(run: Any, tmp_path: Path) -> None:
    from conftest import tiny_bert
    from transformers import BartConfig, BartForConditionalGeneration, BertForMaskedLM

    data = write_rows(tmp_path / "rows.jsonl", conversations(6, 0))
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    BertForMaskedLM(tiny_bert(vocab_size=320)).save_pretrained(tmp_path / "bert")
    BartForConditionalGeneration(BartConfig(vocab_size=320, **sizes)).save_pretrained(tmp_path / "bart")
    # Neither has a chat template, which is not what is wrong with them.
    for name, how in (("bert", "reads a text in both directions"), ("bart", "has an encoder beside its decoder")):
        chat_tokenizer(None).save_pretrained(tmp_path / name)
        run("--model.name", tmp_path / name, "--data.train", data).refused(
            f"a model of type {name}, which {how} and so is no causal language model", "such as a Llama"
        )


def test_a_setting_for_generation_that_is_named_for_ever_ends_the_start() -> None:
    class Stubborn:
        temperature: float | None = 0.5
        asked = 0

        def validate(self, strict: bool) -> None:
            self.asked += 1
            assert self.asked < 9
            raise ValueError("GenerationConfig is invalid:\n- `temperature`: it is not what it should be")

    with pytest.raises(UserError, match="the generation settings of some can't be saved again"):
        settle_generation(SimpleNamespace(generation_config=Stubborn()), ModelConfig(name="some"))
