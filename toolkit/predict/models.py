"""Which model is asked, and what kind of predictions it makes: as its folder says, or by the head that it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.checkpoint.format import digest_of_file
from toolkit.config.model import Dtype, ModelConfig
from toolkit.config.yaml import read_yaml
from toolkit.errors import UserError
from toolkit.models.card import NOTE
from toolkit.models.errors import may_not_be_an_id, model_folders, nearest_folder
from toolkit.models.export import note_in
from toolkit.models.load import model_settings, read_json
from toolkit.output.nearby_runs import listed, runs_in
from toolkit.output.run_folder import read_record
from toolkit.predictor import Predictor, Request

HEADS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "ForConditionalGeneration": "summarization",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
"""What a model does, by how the name of its class ends."""


@dataclass(frozen=True)
class Trained:
    """A trained model, and what is known of its training."""

    config: ModelConfig
    task: str
    """What it does, by the name that the hub has for it."""
    told: str
    """What it is, for the user."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns that it was trained on, by the part that they play."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of its training."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the files of its weights."""


def find_model(model: Path | str, dtype: Dtype) -> Trained:
    """Return the model in a run folder, in a model folder, or on the hub.

    Raises:
        UserError: there is none, or it can't be told what it does.
    """
    folder = Path(model)
    record = read_record(folder)
    if record and not (folder / "model").is_dir():
        status = record.get("status")
        what = "has no model any more, which was deleted" if status == "finished" else "has no saved model yet"
        wait = "" if status == "finished" else "let it finish, or "
        raise UserError(
            f"the run in {folder} {what} (its status is {status}); {wait}save the best one so far with: toolkit "
            f"export {folder}"
        )
    if record:
        folder /= "model"
    config = ModelConfig(name=str(folder) if folder.is_dir() else str(model), dtype=dtype)
    runs = runs_in(folder) if folder.is_dir() and not (folder / "config.json").is_file() else []
    if runs:
        raise UserError(f"{model} is the folder of several runs; name one of them: {listed(runs)}")
    if not folder.is_dir():
        near = nearest_folder(folder, [*runs_in(folder.parent), *model_folders(folder.parent)])
        if near is None and folder.name == str(model):  # a run is often named without the folder of the runs
            near = nearest_folder(Path("runs") / folder, runs_in(Path("runs")))
        if near is not None or folder.is_file() or may_not_be_an_id(str(model)):
            what = "which is a file" if folder.is_file() else "and there is no such folder"
            hint = f"did you mean {near}?" if near else "give a run folder, a model folder, or a hub id (owner/name)"
            raise UserError(f"MODEL is {model}, {what}; {hint}")
    try:
        note = note_in(folder) if folder.is_dir() else read_json(config, NOTE) or {}
        own = None if note else model_settings(config)
    except UserError as error:
        raise UserError(*(problem.replace("model.name is", "MODEL is") for problem in error.problems)) from None
    task = note.get("task") or task_of(config, own)
    settings = note.get("settings") or settings_of_run(folder)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return Trained(
        config,
        task,
        f"{folder} ({task})",
        note.get("inputs") or {},
        settings,
        {path.name: digest_of_file(path) for path in files} or {"name": str(model)},
    )


def settings_of_run(folder: Path) -> dict[str, Any]:
    """Return the settings of the run that a model folder is of, if it is one of a run."""
    config = folder.parent / "config.yaml"
    return dict(read_yaml(config)) if folder.name == "model" and config.is_file() else {}


def task_of(config: ModelConfig, settings: Any) -> str:
    """Return what a model does, by its files and by the class that it was saved as.

    Raises:
        UserError: nothing that can be predicted.
    """
    if read_json(config, "modules.json") is not None:
        return "feature-extraction"
    names = list(settings.architectures or [])
    for name in names:
        for ending, task in HEADS.items():
            if name.endswith(ending):
                return task
    raise UserError(
        f"it can't be told what {config.name} predicts: its config.json has the architecture "
        f"{', '.join(names) or '(none)'}; models are asked that end with {', '.join(HEADS)}, or that are those of "
        "sentence_transformers"
    )


def load_predictor(trained: Trained, request: Request, file: Path) -> Predictor:
    """Return what makes predictions with a model; `file` holds the rows.

    Raises:
        UserError: the model can't be loaded, or the file has not what it takes.
    """
    config = trained.config
    match trained.task:
        case "text-classification":
            from toolkit.tasks.text_classification import prediction as classes

            return classes.predictor(config, request)
        case "token-classification":
            from toolkit.tasks.token_classification import prediction as tags

            return tags.predictor(config, request)
        case "question-answering":
            from toolkit.tasks.question_answering import prediction as answers

            return answers.predictor(config, request)
        case "image-classification":
            from toolkit.tasks.image_classification import prediction as images

            return images.predictor(config, request, file if file.is_dir() else file.parent)
        case "feature-extraction":
            from toolkit.tasks.sentence_embedding import prediction as vectors

            return vectors.predictor(config, request)
        case "summarization" | "translation" | "text2text-generation":
            from toolkit.tasks.seq2seq import prediction as texts

            return texts.predictor(config, request)
        case "fill-mask":
            from toolkit.tasks.language_modeling import prediction as words

            return words.predictor(config, request)
        case "text-generation":
            from toolkit.tasks.dpo import prediction as preferences

            if preferences.has_pairs(request):
                return preferences.predictor(config, request)
            from toolkit.tasks.sft import prediction as replies

            return replies.predictor(config, request)
    raise UserError(f"{trained.told}: toolkit predict has no predictions for such a model")
