"""Models that can't be trained or evaluated: what the folder lacks or mixes is named, and nothing in it is executed."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Classify, save_tokenizer, tiny_bert
from transformers import BertForSequenceClassification, BertModel, ViTConfig, ViTModel, WhisperConfig, WhisperModel

from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.models.changes import set_dropout
from toolkit.models.load import TOKEN_CLASSIFIER, load_model
from toolkit.models.tiny import encoder as encoder_settings

ENCODERS = "give a model that Transformers has a sequence classification head for"


@pytest.fixture
def copy(encoder: Path, tmp_path: Path) -> Path:
    """The tiny encoder, to be damaged."""
    return Path(shutil.copytree(encoder, tmp_path / "model"))


@pytest.fixture
def write(tmp_path: Path) -> object:
    """Write rows of one text and these labels."""

    def to_file(*labels: object) -> Path:
        path = tmp_path / "other.csv"
        words = ["one", "two", "three", "four", "five"]
        path.write_text("text,label\n" + "".join(f"{words[i % 5]},{label}\n" for i, label in enumerate(labels)))
        return path

    return to_file


def save_classifier(folder: Path, labels: list[str], **changes: object) -> Path:
    """Save the tiny encoder with a head."""
    names = dict(enumerate(labels))
    settings = tiny_bert(id2label=names, label2id={name: number for number, name in names.items()}, **changes)
    BertForSequenceClassification(settings).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def test_folder_is_missing(classify: Classify, tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    classify(model=missing).refused(f"model.name is '{missing}', which is no folder; give a model folder or a hub id")


def test_file_instead_of_a_folder(classify: Classify, copy: Path) -> None:
    classify(model=copy / "model.safetensors").refused(f"which is no folder; give its folder: --model.name {copy}")


def test_folder_without_config(classify: Classify, copy: Path) -> None:
    (copy / "config.json").unlink()
    classify(model=copy).refused(f"the model folder {copy} has no config.json; give the folder that `save_pretrained`")


def test_a_run_or_a_checkpoint_instead_of_a_model(classify: Classify, encoder: Path, tmp_path: Path) -> None:
    run = classify("--steps", "1", "--epochs", "null").done().folder
    other = ["--output", str(tmp_path / "other")]
    told = classify(*other, model=run)
    told.told(f"model.name is '{run}', a run folder, whose model is in it: give --model.name {run / 'model'}")
    classify(*other, model=run / "checkpoints" / "step-000001").told(
        "a checkpoint, from which its run goes on; the model that the run saves when it is", f"is {run / 'model'}"
    )
    classify(*other, model=encoder.parent).told("a folder without a config.json", f"give --model.name {encoder}")
    shutil.rmtree(run / "model")
    classify(*other, model=run).told("the folder of a run that has saved no model yet; finish that run, or name")


def test_folder_with_a_config_that_is_none(classify: Classify, copy: Path) -> None:
    (copy / "config.json").write_text("{half", encoding="utf-8")
    classify(model=copy).refused(f"the model folder {copy} has no configuration that can be read")
    (copy / "config.json").write_text('{"model_type": "brt"}', encoding="utf-8")
    classify(model=copy).refused(f"the model folder {copy} has no configuration that can be read", "brt")


def test_folder_without_weights(classify: Classify, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    classify(model=copy).refused(f"the model folder {copy} has no weights (model.safetensors); it holds config.json, ")


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


def test_pickled_weights_are_refused_and_not_unpickled(classify: Classify, copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    planted = tmp_path / "planted"
    torch.save({"weight": Payload(planted)}, copy / "pytorch_model.bin")
    classify(model=copy).refused(
        "only pickled weights (pytorch_model.bin), which are not read because a pickle can run code", "(safetensors)"
    )
    assert not planted.exists()
    # The payload is a live one.
    os.close(torch.load(copy / "pytorch_model.bin", weights_only=False)["weight"])
    assert planted.exists()


def test_weights_that_are_cut_off(classify: Classify, copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    classify(model=copy).refused(f"the model folder {copy} has no weights that can be read")


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_model_of_another_architecture(classify: Classify, tmp_path: Path, with_tokenizer: bool) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    folder = tmp_path / "vit"
    ViTModel(ViTConfig(image_size=8, patch_size=4, **sizes)).save_pretrained(folder)
    if with_tokenizer:
        save_tokenizer(folder)
    classify(model=folder).refused(
        f"model.name is '{folder}', a model of type vit, which can't classify texts; {ENCODERS}"
    )


def test_model_of_speech(classify: Classify, tmp_path: Path) -> None:
    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 1) | dict.fromkeys(
        ("encoder_ffn_dim", "decoder_ffn_dim", "d_model"), 16
    )
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 14}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)
    WhisperModel(WhisperConfig(**layers, **heads, **special)).save_pretrained(tmp_path / "whisper")
    classify(model=tmp_path / "whisper").refused("a model of type whisper, which can't classify texts", ENCODERS)


def test_weights_of_another_model(classify: Classify, copy: Path) -> None:
    tiny_bert(hidden_size=32).save_pretrained(copy)
    classify(model=copy).refused(
        f"the weights in {copy} do not fit its config.json (architecture BertForSequenceClassification): bert.embed",
        "missing or of another size; the folder mixes two models or is incomplete",
    )


def test_weights_of_fewer_layers(classify: Classify, copy: Path) -> None:
    tiny_bert(num_hidden_layers=2).save_pretrained(copy)
    classify(model=copy).refused(f"the weights in {copy} do not fit its config.json", "bert.encoder.layer.1.")


def test_tokenizer_is_missing(classify: Classify, copy: Path) -> None:
    for file in copy.glob("tokenizer*"):
        file.unlink()
    classify(model=copy).refused(f"the model folder {copy} has no tokenizer that can be read", "it holds config.json")


def test_tokenizer_is_damaged(classify: Classify, copy: Path) -> None:
    (copy / "tokenizer.json").write_text('{"version": "1.0", "model": 5}', encoding="utf-8")
    classify(model=copy).refused(
        f"the model folder {copy} has no tokenizer that can be read (KeyError:", "save or download it again"
    )


def test_tokenizer_knows_more_than_the_model(classify: Classify, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    BertModel(tiny_bert(vocab_size=10)).save_pretrained(folder)
    save_tokenizer(folder)
    classify(model=folder).refused(
        f"the tokenizer of {folder} knows 14 tokens, but the model only 10; they do not belong together: give"
    )


def test_hub_id_without_network(classify: Classify) -> None:
    classify(model="acme/encoder").refused(
        "model.name is 'acme/encoder': there is no such folder, it is not in the local cache",
        "offline mode is on (HF_HUB_OFFLINE); give a local folder, or unset HF_HUB_OFFLINE",
    )


def test_revision_and_dropout_that_cannot_be(classify: Classify) -> None:
    classify("--model.revision", "main", "--model.dropout", "1", model=None).refused(
        "model.revision is 'main', but the embedded model has no revisions; give model.name too",
        "model.dropout is 1.0; it must be at least 0 and below 1",
    )


# Heads


def test_plan_says_what_becomes_of_the_head(classify: Classify, write: object, tmp_path: Path) -> None:
    model = save_classifier(tmp_path / "model", ["a", "b"])
    usual = ("--steps", "1")
    classify(*usual, model=model).done().says("the model's own, 2 labels")
    shutil.rmtree(tmp_path / "run")
    three = write(*"abc" * 10)  # type: ignore[operator]
    classify(*usual, model=model, train=three).done().says(
        "new weights, 3 labels, because the model's own is for 2 labels ('a', 'b')"
    )
    shutil.rmtree(tmp_path / "run")
    others = write(*"xy" * 10)  # type: ignore[operator]
    classify(*usual, model=model, train=others).done().says(
        "starts from the model's own, which was trained for other labels ('a', 'b')"
    )


def test_regression_head_is_replaced_for_classes(classify: Classify, tmp_path: Path) -> None:
    model = save_classifier(tmp_path / "model", ["value"], problem_type="regression")
    classify("--steps", "1", model=model).done().says(
        "new weights, 2 labels, because the model's own is for one number"
    )


# Evaluation only


def test_evaluation_without_a_saved_model(classify: Classify, tmp_path: Path) -> None:
    classify("--evaluate.only", model=None).refused(
        f"evaluate.only finds no run in {tmp_path / 'run'}, and no model is named; name a run folder with "
        "--output, or a model"
    )


def test_evaluation_of_a_model_without_a_trained_head(classify: Classify, encoder: Path) -> None:
    classify("--evaluate.only").refused(
        f"{encoder} has no trained head to classify texts with (",
        "so there is nothing to evaluate",
        "saved after training",
    )


def test_evaluation_with_labels_that_the_model_does_not_know(classify: Classify, tmp_path: Path) -> None:
    model = save_classifier(tmp_path / "model", ["a", "c"])
    classify("--evaluate.only", model=model).refused(
        "labels that the model, whose labels are 'a', 'c', does not know: 'b'"
    )


def test_evaluation_of_numbers_by_a_model_of_classes(classify: Classify, write: object, tmp_path: Path) -> None:
    model = save_classifier(tmp_path / "model", ["a", "b"])
    numbers = write(*(0.5, 1.5) * 10)  # type: ignore[operator]
    classify("--evaluate.only", model=model, train=numbers).refused(
        "the labels are numbers (regression), but the model puts texts into 2 classes ('a', 'b')"
    )


@pytest.mark.parametrize("labels", ["ab" * 10, "15" * 10])
def test_evaluation_of_classes_by_a_model_of_numbers(
    classify: Classify, write: object, tmp_path: Path, labels: str
) -> None:
    model = save_classifier(tmp_path / "model", ["value"], problem_type="regression")
    classes = write(*labels)  # type: ignore[operator]
    classify("--evaluate.only", model=model, train=classes).refused(
        "the labels are 2 classes", "but the model gives a number (regression); give --data.kind regression"
    )
    if labels[0] == "1":
        outcome = classify("--evaluate.only", "--data.kind", "regression", model=model, train=classes).done()
        assert "model" not in outcome.files


@pytest.mark.parametrize("named", [False, True])
def test_an_attention_that_is_not_to_be_had(classify: Classify, encoder: Path, named: bool) -> None:
    # Neither its package nor its device is here.
    classify("--model.attention", "flash_attention_2", model=encoder if named else None).refused(
        "model.attention is 'flash_attention_2', which can't be had here", "leave it out"
    )


def test_a_model_of_one_label_is_not_scored_on_several(classify: Classify, tmp_path: Path) -> None:
    model = save_classifier(tmp_path / "model", ["a", "b"], problem_type="single_label_classification")
    classify("--evaluate.only", "--data.kind", "multi", "--data.separator", ";", model=model).refused(
        f"{model} was trained for single label classification, and the labels here are for multi label classification"
    )


@pytest.mark.parametrize(
    ("kind", "sizes", "probability", "said"),
    [
        ("EsmConfig", {"token_dropout": True, "pad_token_id": 0}, 0.25, None),
        ("LevitConfig", {}, 0.0, None),
        (
            "LevitConfig",
            {},
            0.25,
            "a model of type levit takes only whole numbers for its drop_path_rate; leave it out",
        ),
        ("ResNetConfig", {}, 0.25, "a model of type resnet has no dropout; leave it out"),
    ],
)
def test_dropout_is_set_where_it_is_a_probability(
    kind: str, sizes: dict[str, object], probability: float, said: str | None
) -> None:
    import transformers

    settings = getattr(transformers, kind)(**sizes)
    if said is not None:
        with pytest.raises(UserError, match=said):
            set_dropout(settings, probability)
        return
    set_dropout(settings, probability)
    found = {key: value for key, value in settings.to_dict().items() if "drop" in key}
    assert {value for key, value in found.items() if key != "token_dropout"} == {probability}
    assert found.get("token_dropout", True) is True


def test_dropout_reaches_layers_that_no_setting_names(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaModel(LlamaConfig(vocab_size=14, **sizes)).save_pretrained(tmp_path)
    for given, expected in ((None, {0.1}), (0.0, {0.0}), (0.5, {0.5})):
        config = ModelConfig(name=str(tmp_path), dropout=given)
        model = load_model(config, TOKEN_CLASSIFIER, encoder_settings, vocabulary=14)
        assert {layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout)} == expected
