"""The image recipe: images of every kind and every defect, folders and tables, augmentation, and the model that is
saved."""

import csv
import io
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_classify_images import arguments, write_images
from trial import Outcome, run_here

from toolkit.data.loader import MicroBatches
from toolkit.data.micro_batches import cut
from toolkit.details import class_details
from toolkit.errors import UserError
from toolkit.tasks.image_classification.augmentation import AugmentConfig
from toolkit.tasks.image_classification.confusion import described, matrix_of
from toolkit.tasks.image_classification.data import LabelledImages
from toolkit.tasks.image_classification.processor import Preparation
from toolkit.tasks.image_classification.reading import ImageError, decode, inspect

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
import classify_images as recipe

MOST = 10**8


def run(folder: Path, *flags: str) -> Outcome:
    return run_here(recipe.ClassifyImages, recipe.task, ["--threads", "1", *flags], folder)


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(height: int = 20, width: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def plain(colour: Any, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (6, 4), colour)


# One image


def test_transparent_images_are_laid_on_a_colour() -> None:
    half = decode(file_of(plain((200, 0, 0, 51), "RGBA")), (0, 100, 255))
    assert half.mode == "RGB"
    assert half.getpixel((0, 0)) == (40, 80, 204)
    grey = decode(file_of(plain((10, 0), "LA")))
    assert grey.getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([1, 2, 3, 4, 5, 6])
    assert decode(file_of(palette)).getpixel((0, 0)) == (4, 5, 6)
    assert decode(file_of(palette, transparency=1)).getpixel((0, 0)) == (255, 255, 255)
    assert [inspect(file_of(palette, **more), MOST).transparent for more in ({}, {"transparency": 1})] == [False, True]


def test_grey_sixteen_bits_and_printing_colours_become_eight_bits_of_red_green_and_blue() -> None:
    assert decode(file_of(plain(77, "L"))).getpixel((0, 0)) == (77, 77, 77)
    assert decode(file_of(plain(1, "1"))).getpixel((0, 0)) == (255, 255, 255)
    deep = Image.fromarray(np.full((4, 6), 0x80FF, dtype=np.uint16))
    assert decode(file_of(deep)).getpixel((0, 0)) == (0x80, 0x80, 0x80)
    assert decode(file_of(deep, "TIFF")).getpixel((0, 0)) == (0x80, 0x80, 0x80)
    assert decode(file_of(plain((0, 0, 0, 0), "CMYK"), "TIFF")).getpixel((0, 0)) == (255, 255, 255)
    with pytest.raises(ImageError, match="floating-point"):
        inspect(file_of(Image.fromarray(np.zeros((4, 6), dtype=np.float32)), "TIFF"), MOST)


def test_photographs_are_turned_and_of_an_animation_the_first_picture_is_taken() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = file_of(noise(), "JPEG", exif=exif)
    assert inspect(content, MOST).turned
    assert decode(content).size == (20, 30)
    content = file_of(plain((255, 0, 0)), "GIF", save_all=True, append_images=[plain((0, 0, 255))])
    assert inspect(content, MOST).animated
    assert decode(content).getpixel((0, 0)) == (255, 0, 0)


def test_a_large_jpeg_is_decoded_smaller_where_that_is_enough() -> None:
    content = file_of(plain((10, 200, 30)).resize((1600, 1200)), "JPEG")
    assert decode(content).size == (1600, 1200)
    assert decode(content, smallest=(128, 128)).size == (200, 150)


def test_broken_images_are_known_before_they_are_decoded() -> None:
    jpeg, png = file_of(noise(200, 200), "JPEG"), file_of(noise(200, 200))
    for content, reason in [
        (b"", "is empty"),
        (b"no image at all", "in no format"),
        (jpeg[: len(jpeg) // 2], "is broken"),
        (png[: len(png) // 2], "is broken"),
        (file_of(noise(), "WEBP")[:-40], "is broken"),
    ]:
        with pytest.raises(ImageError, match=reason):
            inspect(content, MOST)
    harmed = bytearray(png)
    harmed[len(png) // 2] ^= 255
    with pytest.raises(ImageError, match="is broken"):
        inspect(bytes(harmed), MOST)
    with pytest.raises(ImageError, match=r"more than 39,999 pixels \(data.max_pixels\) \(200 x 200\)"):
        inspect(png, 39_999)
    assert inspect(png, 40_000).width == 200
    # Pillow's own limit: the header alone claims 40 gigapixels.
    bomb = bytearray(png)
    bomb[16:24] = (200_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    with pytest.raises(ImageError, match="more pixels than Pillow reads"):
        inspect(bytes(bomb), MOST)
    # What comes behind the end of an image harms nothing.
    assert inspect(jpeg + b"trailer" * 1000, MOST).height == 200


# Augmentation


def samples(count: int) -> list[dict[str, Any]]:
    made = [np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8) for number in range(count)]
    return [{"content": file_of(Image.fromarray(one)), "name": "made", "label": n} for n, one in enumerate(made)]


class Held:
    """Samples in memory."""

    def __init__(self, held: list[dict[str, Any]]) -> None:
        self.held = held

    def fetch(self, ids: Any) -> list[dict[str, Any]]:
        return [self.held[number] for number in ids]


def test_a_sample_is_augmented_alike_on_every_topology_and_anew_in_every_epoch(tmp_path: Path) -> None:
    config = recipe.ClassifyImages(
        data=LabelledImages(name=str(write_images(tmp_path / "images", 12)[0].parent.parent), size=8),
        augment=AugmentConfig(flip=True),
    )
    task = recipe.task(config)
    held: Any = Held(samples(10))

    def pixels(step: int, processes: int, micro: int | None, seed: int = 0) -> dict[int, torch.Tensor]:
        batches = MicroBatches(held, task, seed, 3)
        found = {}
        for plan in cut(step, np.arange(10), None, processes, micro):
            if not plan.dummy:
                loaded = batches.__getitems__(plan)
                found.update(zip(loaded.ids, loaded.batch["pixel_values"], strict=True))
        return found

    one, other, next_epoch, other_seed = pixels(0, 1, None), pixels(2, 4, 2), pixels(3, 1, None), pixels(0, 1, None, 1)
    for number in range(10):
        assert torch.equal(one[number], other[number])
        assert not torch.equal(one[number], next_epoch[number])
        assert not torch.equal(one[number], other_seed[number])
    # Evaluation sees every image as it is.
    asked = MicroBatches(held, task, 0, None)
    first, later = (asked.__getitems__(cut(step, np.arange(10), None, 1, None)[0]).batch for step in (0, 7))
    assert torch.equal(first["pixel_values"], later["pixel_values"])


def prepared(processor: Any, number: int = 0, **augment: Any) -> np.ndarray[Any, Any]:
    preparation = Preparation(
        processor, AugmentConfig(**{"crop": 1.0, "colour": 0.0, **augment}), (255, 255, 255), None
    )
    pixels: np.ndarray[Any, Any] = preparation.augmented(samples(1)[0], np.random.default_rng(number))["pixels"]
    return pixels


def test_augmented_pixels_are_the_processors_own() -> None:
    """What is looked up has the bits of what is computed, for means and deviations that differ by colour."""
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    processor = ViTImageProcessorPil(size={"height": 12, "width": 16}, image_mean=mean, image_std=deviation)
    image = decode(samples(1)[0]["content"])
    whole = processor(images=image, return_tensors="np")["pixel_values"][0]
    assert np.array_equal(prepared(processor), whole)
    mirrored = [np.array_equal(prepared(processor, number, flip=True), whole[..., ::-1]) for number in range(40)]
    assert 8 < sum(mirrored) < 32
    low, high = whole.min(), whole.max()
    for number in range(20):
        cropped = prepared(processor, number, crop=0.3, colour=0.5)
        assert cropped.shape == (3, 12, 16)
        assert low - 1 < cropped.min() < cropped.max() < high + 1


def test_a_crop_is_a_part_of_the_image_and_not_smaller_than_asked() -> None:
    """An image that holds its own coordinates tells which part was taken."""
    from toolkit.tasks.image_classification.augmentation import draw, part

    rows, columns = np.mgrid[0:200, 0:200].astype(np.uint8)
    image = Image.fromarray(np.stack([rows, columns, rows], axis=-1))
    areas = []
    for number in range(50):
        taken = part(draw(AugmentConfig(crop=0.5), np.random.default_rng(number)), image, (50, 50), 2).astype(int)
        high, wide = (int(np.ptp(taken[..., channel])) * 50 / 49 for channel in (0, 1))
        assert 0.7 < wide / high < 1.4
        areas.append(high * wide / 200**2)
    assert 0.47 < min(areas) < 0.6
    assert 0.9 < max(areas) <= 1.01


# Where images come from


def read(**settings: Any) -> Any:
    return LabelledImages(**settings).read()


def test_folders_with_splits_and_without(tmp_path: Path) -> None:
    write_images(tmp_path / "a" / "train", 9)
    write_images(tmp_path / "a" / "Test", 6, first=100)
    (tmp_path / "a" / "train" / "red" / "notes.txt").write_text("none")
    images = read(name=str(tmp_path / "a"))
    assert (len(images.train), len(images.evaluate), images.labels) == (9, 6, ["blue", "green", "red"])
    assert "a test set" in images.summary["data"]
    assert images.summary["left out"].startswith("1 files")
    assert [
        len(source) for source in read(train=str(tmp_path / "a" / "train"), eval=str(tmp_path / "a" / "Test")).sources()
    ] == [9, 6]
    assert len(read(name=str(tmp_path / "a"), train="Test", eval="train").train) == 6
    # A folder in a folder, with capital endings, and no split.
    write_images(tmp_path / "b" / "Dataset", 30)
    for path in (tmp_path / "b").rglob("*.png"):
        path.rename(path.with_suffix(".PNG"))
    images = read(name=str(tmp_path / "b"), held_out=0.2)
    assert (len(images.train), len(images.evaluate)) == (24, 6)
    source = images.sources()[0]
    sample = source.fetch([3])[0]
    assert Path(sample["name"]).parent.name == images.labels[sample["label"]]
    assert sample["content"] == Path(sample["name"]).read_bytes()
    before = source.digest()
    decode(sample["content"]).save(sample["name"], "BMP")
    assert read(name=str(tmp_path / "b"), held_out=0.2).sources()[0].digest() != before


def test_tables_of_paths_and_of_images(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    paths = write_images(tmp_path / "table" / "pictures", 9)
    rows = [{"file_name": str(path.relative_to(tmp_path / "table")), "label": path.parent.name} for path in paths]
    (tmp_path / "table" / "some.jsonl").write_text("\n".join(map(json.dumps, rows)))
    images = read(name=str(tmp_path / "table"), held_out=0.34)
    assert "'file_name'" in images.summary["columns"]
    contents = [path.read_bytes() for path in paths]
    for number, (column, kind) in enumerate(
        [(contents, pa.binary()), ([{"bytes": one, "path": "x.png"} for one in contents], None)]
    ):
        table = pa.table({"image": pa.array(column, kind), "label": [path.parent.name for path in paths]})
        parquet.write_table(table, tmp_path / f"{number}.parquet")
        other = read(train=str(tmp_path / f"{number}.parquet"), held_out=0.34)
        assert [sample["content"] for sample in other.sources()[0].fetch(range(6))] == [
            sample["content"] for sample in images.sources()[0].fetch(range(6))
        ]
        assert other.sources()[0].digest() == images.sources()[0].digest()


def test_everything_that_is_wrong_with_the_images_of_a_table_is_told_at_once(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 9)
    (tmp_path / "cut.jpg").write_bytes(file_of(noise(100, 100), "JPEG")[:3000])
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "large.png").write_bytes(file_of(noise(200, 200)))
    rows = [[path.relative_to(tmp_path), path.parent.name] for path in paths]
    rows[2:2] = [["cut.jpg", "red"], ["text.png", "red"], ["gone.png", "red"], ["", "red"], ["large.png", "blue"]]
    rows[0][1] = ""
    table = tmp_path / "all.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label"], *rows])
    flags = ["--data.train", str(table), "--data.max_pixels", "30000", "--data.size", "8"]
    told = run(tmp_path / "run", *flags).refused(
        "is broken", "row 3 (", "cut.jpg", "in no format", "row 4 (", "does not exist", "row 5 (", "gone.png", "row 6",
        "more than 30,000 pixels (data.max_pixels): row 7 (", "200 x 200",
        "no label in column 'label' in 1 row (number 1,",
    )  # fmt: skip
    assert told.errors.count("  - ") == 6
    images = read(train=str(table), max_pixels=30000, drop_invalid=True)
    assert len(images.train) + len(images.evaluate) == 8
    assert images.summary["dropped"].endswith("6 of the training data")


def test_folders_and_files_that_are_no_image_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "good", 9)
    loose = tmp_path / "loose"
    write_images(loose, 3)
    (loose / "red" / "002.png").rename(loose / "002.png")
    with pytest.raises(UserError, match=r"in no label's folder \(002.png, 1 in all\)"):
        read(name=str(loose))
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "all.tar.gz").write_bytes(b"")
    for place in ("packed", "packed/all.tar.gz"):
        with pytest.raises(UserError, match="unpack it"):
            read(name=str(tmp_path / place))
    with pytest.raises(UserError, match="a single image"):
        read(train=str(tmp_path / "good" / "red" / "002.png"))
    with pytest.raises(UserError, match=r"data.eval is 'tset', but the folder .* has no such folder"):
        read(name=str(tmp_path / "good"), train="red", eval="tset")
    with pytest.raises(UserError, match=r"data.image and data.label name a column, but the images are in folders"):
        read(name=str(tmp_path / "good"), image="path", label="class")
    write_images(tmp_path / "strange" / "train", 6)
    write_images(tmp_path / "strange" / "val", 2)
    (tmp_path / "strange" / "val" / "blue").rename(tmp_path / "strange" / "val" / "violet")
    with pytest.raises(UserError, match="labels that the training data does not know: 'violet'"):
        read(name=str(tmp_path / "strange"))


# The whole recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder / "data", 120)
    flags = ["--data.name", str(folder / "data"), "--data.size", "8", "--epochs", "5", "--batch.size", "16"]
    return run(folder / "run", *flags).done()


def test_the_saved_model_answers_alike_in_the_pipeline(trained: Outcome) -> None:
    from transformers import pipeline

    record = trained.record
    assert record["metrics"]["accuracy"] > 0.9 > 0.5 > record["baseline"]["accuracy"]
    shown = [json.loads(line) for line in (trained.folder / "predictions.jsonl").read_text().splitlines()]
    assert len(shown) == 20
    classify = pipeline("image-classification", str(trained.folder / "model"))
    for row in shown:
        answers = {answer["label"]: answer["score"] for answer in classify(row["image"])}
        assert max(answers, key=lambda label: answers[label]) == row["prediction"] == next(iter(row["scores"]))
        assert answers == pytest.approx({label: row["scores"][label] for label in answers}, abs=1e-5)
        assert Path(row["image"]).parent.name == row["reference"]

    # Not only the label: the logits, of an image that has to be resized and cut.
    task = recipe.task(recipe.ClassifyImages(data=LabelledImages(name=str(trained.folder.parent / "data"), size=8)))
    assert task.data.evaluate is not None
    assert task.evaluate_transform is not None
    sample = task.data.evaluate.fetch([0])[0]
    batch = task.collate([task.evaluate_transform(sample, np.random.default_rng(0))])
    with torch.no_grad():
        scores = classify.model(pixel_values=batch["pixel_values"]).logits.softmax(-1)[0]
    answers = {answer["label"]: answer["score"] for answer in classify(sample["name"])}
    for name, number in classify.model.config.label2id.items():
        assert answers[name] == pytest.approx(float(scores[number]), abs=1e-7)


def test_the_confusion_matrix_stands_beside_the_model(trained: Outcome) -> None:
    with (trained.folder / "model" / "confusion_matrix.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["label", "blue", "green", "red"]
    matrix = np.array([row[1:] for row in rows], dtype=int)
    assert matrix.sum() == trained.record["samples"]["evaluate"]
    assert np.trace(matrix) / matrix.sum() == pytest.approx(trained.record["metrics"]["accuracy"])
    assert "## Confusion" in (trained.folder / "model" / "README.md").read_text()


def test_a_name_does_not_end_a_cell_of_the_model_card() -> None:
    card = described(["a|b", "c"], np.array([[1, 0], [1, 0]]))
    assert "| **a\\|b** | 1 | 0 |" in card
    assert "- `c` taken for `a|b`: 1 of 1" in card


def test_a_saved_model_is_evaluated_on_other_images(trained: Outcome, tmp_path: Path) -> None:
    """It keeps its labels, and its own size: one of the three colours is not in the new data."""
    paths = write_images(tmp_path / "data" / "test", 30, first=500)
    for path in paths:
        if path.parent.name == "green":
            path.unlink()
    (tmp_path / "data" / "test" / "green").rmdir()
    flags = [
        "--data.name",
        str(tmp_path / "data"),
        "--data.train",
        "test",
        "--data.eval",
        "test",
        "--evaluate.only",
        "true",
    ]
    outcome = run(tmp_path / "run", *flags, "--model.name", str(trained.folder / "model")).done()
    assert re.search(r"^accuracy +(0\.9|1\.0)", outcome.output, re.MULTILINE)


def test_models_that_bring_their_own_preparation(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes)).save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    write_images(tmp_path / "data", 12)
    common = [
        "--data.name",
        str(tmp_path / "data"),
        "--model.name",
        str(tmp_path / "vit"),
        "--steps",
        "1",
        "--epochs",
        "null",
    ]
    outcome = run(tmp_path / "run", *common).done().says("16x16 pixels by ViTImageProcessorPil")
    saved = json.loads((outcome.folder / "model" / "preprocessor_config.json").read_text())
    assert saved["size"] == {"height": 16, "width": 16}
    run(tmp_path / "two", *common, "--data.size", "32").refused("data.size is 32", "makes 16 x 16 pixels")
    ViTConfig(num_channels=1, image_size=16, **sizes).save_pretrained(tmp_path / "vit")
    run(tmp_path / "three", *common).refused("a model for images of 1 channel(s)")


def test_an_image_that_turns_out_broken_when_it_is_decoded_is_named(tmp_path: Path) -> None:
    """A JPEG with a broken table of codes: header and last bytes are those of a whole file."""
    content = bytearray(file_of(noise(100, 100), "JPEG"))
    table = content.index(b"\xff\xc4")
    content[table + 5 : table + 20] = b"\xff" * 15
    assert inspect(bytes(content), MOST).width == 100
    for path in write_images(tmp_path / "data", 6)[:3]:
        path.with_suffix(".jpg").write_bytes(content)
        path.unlink()
    outcome = run(tmp_path / "run", "--data.name", str(tmp_path / "data"), "--data.size", "8")
    outcome.told("/data/", ".jpg", "shows only when it is decoded")


def test_settings_that_can_not_be(tmp_path: Path) -> None:
    flags = [
        "--augment.crop",
        "0",
        "--augment.colour",
        "1",
        "--data.background",
        "[0, 0, 300]",
        "--data.max_pixels",
        "0",
    ]
    run(tmp_path / "run", *flags).refused(
        "augment.crop is 0", "augment.colour is 1", "data.background is", "data.max_pixels is 0"
    )


def test_the_metrics_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix

    random = np.random.default_rng(0)
    references, predictions = random.integers(0, 4, 60), random.integers(0, 3, 60)
    found = class_details(["a", "b", "c", "d"])(predictions, references)["confusion"]
    assert json.loads(json.dumps(found)) == found
    assert np.array_equal(matrix_of(found), confusion_matrix(references, predictions, labels=range(4)))


def test_the_small_run(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", *arguments(tmp_path / "data")).done()
    assert outcome.record["samples"] == {"train": 37, "evaluate": 11}
