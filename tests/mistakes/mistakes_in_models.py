"""Mistakes with the model: which folder, what lies in it, and what it is for."""

from mistake import SHORT, Mistake

TEXTS = "python recipes/classify.py --data.train reviews.csv"
ENCODER = f"{TEXTS} --model.name models/encoder"
QUICK = f"{SHORT} --rehearse false"


def wrong(command: str, *says: str, before: str = "", mend: dict[str, str] | None = None) -> Mistake:
    """Return a mistake with a model, which a step of training shows to be mended."""
    return Mistake(command, says, mend or {}, before=before, proof=QUICK)


MISTAKES = (
    # Where it is.
    wrong(
        f"{TEXTS} --model.name model/encoder", "and there is no such folder; did you mean", mend={"model/": "models/"}
    ),
    wrong(
        "python recipes/classify.py --data.train reviws.csv --model.name models/encodr",
        "data.train is 'reviws.csv', but there is no such file or folder",
        "and there is no such folder",
        mend={"reviws": "reviews", "encodr": "encoder"},
    ),
    wrong(
        "python recipes/tag.py --data.train wrods.conll --model.name bert-base",
        "data.train is 'wrods.conll', but there is no such file or folder; did you mean words.conll?",
        "model.name is 'bert-base': there is no such folder, it is not in the local cache",
    ),
    wrong(f"{TEXTS} --model.name models/encodr", "and there is no such folder", mend={"encodr": "encoder"}),
    wrong(f"{TEXTS} --model.name bert-base-uncased", "not in the local cache", "HF_HUB_OFFLINE"),
    wrong(f"{TEXTS} --model.name 'bert base'", "give a model folder or a hub id (owner/name)"),
    wrong(f"{TEXTS} --model.name ''", "model.name is empty", "leave it out for the embedded model"),
    wrong(f"{TEXTS} --model.name models", "a folder without a config.json; below it there is: give --model.name"),
    wrong(f"{TEXTS} --model.name reviews.csv", "which is no folder; give a model folder or a hub id"),
    wrong(
        f"{TEXTS} --model.name runs/reviews", "a run folder, whose model", mend={"runs/reviews": "runs/reviews/model"}
    ),
    wrong(f"{TEXTS} --model.name runs/stopped", "the folder of a run that has saved no model yet; finish that run"),
    wrong(f"{TEXTS} --model.name runs/reviews/checkpoints/step-000006", "a checkpoint, from which its run goes on"),
    wrong(
        f"{TEXTS} --model.name models/encoder/model.safetensors",
        "which is no folder; give its folder: --model.name models/encoder",
        mend={"/model.safetensors": ""},
    ),
    wrong(
        f"{TEXTS} --model.name https://huggingface.co/google-bert/bert-base-cased",
        "an address, which is not read; give the hub id: --model.name google-bert/bert-base-cased",
    ),
    wrong(f"{TEXTS} --model.revision main", "the embedded model has no revisions; give model.name too"),
    # What is in its folder.
    wrong(ENCODER, "has no config.json; give the folder that", before="rm models/encoder/config.json"),
    wrong(ENCODER, "has no configuration that can be read", before="echo '{' > models/encoder/config.json"),
    wrong(ENCODER, "has no weights (model.safetensors); it holds", before="rm models/encoder/model.safetensors"),
    wrong(ENCODER, "has no tokenizer that can be read", "no tokenizer.json", before="rm models/encoder/tokenizer*"),
    wrong(
        ENCODER,
        "has no weights that can be read",
        "save or download it again",
        before="truncate -s 1000 models/encoder/model.safetensors",
    ),
    wrong(
        ENCODER,
        "was cloned without its large files",
        "git -C models/encoder lfs pull",
        before="echo 'version https://git-lfs.github.com/spec/v1' > models/encoder/model.safetensors",
    ),
    wrong(
        ENCODER,
        "has only pickled weights (pytorch_model.bin), which are not read",
        before="mv models/encoder/model.safetensors models/encoder/pytorch_model.bin",
    ),
    wrong(
        ENCODER,
        "model type `berd`",
        before='sed -i \'s/"bert"/"berd"/\' models/encoder/config.json',
    ),
    wrong(
        ENCODER,
        "do not fit its config.json",
        "the folder mixes two models or is incomplete",
        before='sed -i \'s/"hidden_size": 16/"hidden_size": 32/\' models/encoder/config.json',
    ),
    # What it is for.
    wrong(f"{TEXTS} --model.name models/eyes", "a model of type vit, which can't classify texts"),
    wrong(
        "python recipes/classify_images.py --data.name photos --model.name models/encoder",
        "a model of type bert, which can't classify images",
    ),
    wrong(
        "python recipes/classify_images.py --data.name photos --model.name models/eyes",
        "has no image processor that can be read (there is no preprocessor_config.json)",
    ),
    wrong(
        "python recipes/summarize.py --data.train articles.jsonl --model.name models/encoder",
        "which can't turn one text into another; give a model that Transformers has an encoder and a decoder for",
    ),
    wrong(
        "python recipes/translate.py --data.train sentences.jsonl --data.source_language en --data.target_language de "
        "--model.name models/chat",
        "a model of type llama, which can't turn one text into another",
    ),
    wrong(
        "python recipes/chat.py --data.train chats.jsonl --model.name models/encoder",
        "give one that only continues texts, such as a Llama or a Qwen",
    ),
    wrong(
        "python recipes/prefer.py --data.train pairs.jsonl --model.name models/encoder",
        "give one that only continues texts, such as a Llama or a Qwen",
    ),
    wrong(
        "python recipes/prefer.py --data.train pairs.jsonl --dpo.reference models/encoder",
        "whose tokenizer has another vocabulary",
        "give a model of the same family",
    ),
    wrong(
        "python recipes/embed.py --data.train similar.csv --model.name models/writer",
        "an encoder with a decoder",
        "give an encoder, such as a BERT",
    ),
    wrong(
        "python recipes/language.py --data.train book.txt --objective masked --model.name models/chat",
        "a causal model, which reads forwards; give --objective causal",
        mend={"masked": "causal"},
    ),
    wrong(
        "python recipes/language.py --data.train book.txt --objective causal --model.name models/encoder",
        "an encoder, which reads in both directions; give --objective masked",
    ),
    wrong(
        "python recipes/tag.py --data.train words.conll --model.name models/eyes",
        "models/eyes",
    ),
    wrong(
        "python recipes/answer.py --data.train questions.jsonl --model.name models/nothing/here",
        "which is no folder; give a model folder or a hub id (owner/name)",
    ),
    # How it is trained.
    wrong(f"{ENCODER} --model.lora.rank 4", "gets a new head", mend={"": "--model.lora.merge true"}),
    wrong(
        f'{ENCODER} --model.lora.rank 4 --model.lora.merge true --model.lora.targets "[q_proj]"',
        "there are query, key, value, dense, classifier: name some of them, or leave it out",
        mend={' --model.lora.targets "[q_proj]"': ""},
    ),
    wrong(f"{ENCODER} --model.attention flash_attention_2", "can't be had here", "leave it out"),
    wrong(f"{ENCODER} --data.max_length 1000", "takes at most 128 tokens; give 128 or less", mend={"1000": "128"}),
)
