"""Answer questions by marking the answer in a text; or say that it is not there.

    accelerate launch recipes/answer.py
        the embedded questions (what is this function of Python's standard library called, what does it take, return,
        raise?), a minute on two cores: about 0.7 exact, where guessing by the question alone has 0.09

    accelerate launch recipes/answer.py --data.train train-v2.0.json --data.eval dev-v2.0.json \\
        --model.name path/or/hub-id --epochs 2 --output runs/squad
        your own questions, in the layout of SQuAD or as a table, and your own encoder

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/answer.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass

from toolkit import Config, Rates, Task, fine_tune
from toolkit.config.model import ModelConfig
from toolkit.details import COMMON_WORDS
from toolkit.models.load import QUESTION_ANSWERER, load_model
from toolkit.models.tiny import encoder
from toolkit.models.tokenizer import tokenizer
from toolkit.tasks.question_answering.answers import best_spans, postprocess_answers, show_answer, span_loss
from toolkit.tasks.question_answering.data import QuestionData
from toolkit.tasks.question_answering.export import answering_folder
from toolkit.tasks.question_answering.metrics import SCORES, answer_scores
from toolkit.tasks.question_answering.windows import pad_windows


@dataclass(frozen=True)
class Answer(Config):
    rates = Rates(new=2e-3, pretrained=3e-5)

    model: ModelConfig = ModelConfig()
    """Which encoder is trained."""
    data: QuestionData = QuestionData(held_out=0.05)
    """Which questions it is trained on."""
    epochs: float | None = 1
    """Passes over the training data; give epochs or steps, not both."""


def task(config: Answer) -> Task:
    questions = config.data.read()
    tokens = tokenizer(config.model, questions.training_texts(), questions.training_digest)
    data = questions.tokenize(tokens)
    return Task(
        model=lambda context: load_model(
            config.model, QUESTION_ANSWERER, encoder, vocabulary=len(tokens), trained=config.evaluate.only
        ),
        data=data,
        collate=pad_windows(tokens),
        units=lambda batch: len(batch["labels"]),
        loss=span_loss,
        predict=lambda model, batch: best_spans(model, batch, config.data.longest_answer),
        postprocess=postprocess_answers(
            data.evaluate, questions.missing, config.data.no_answer_margin, questions.guesses()
        ),
        metrics=[answer_scores],
        named_metrics=dict.fromkeys(SCORES, answer_scores),
        quality=COMMON_WORDS,
        show=show_answer(data.evaluate),
        decode=tokens.decode,
        export=answering_folder(tokens, config.data, questions.missing),
        summary={"model": config.model.name or "the embedded encoder, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Answer, task)
