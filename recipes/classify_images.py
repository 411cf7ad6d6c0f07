"""Put images into classes: a folder of images for each class, or a table of images and labels.

    accelerate launch recipes/classify_images.py
        the embedded corpus (scikit-learn's handwritten digits, 8x8 pixels), half a minute on one core: accuracy about
        0.98, where the most frequent digit alone has 0.07

    accelerate launch recipes/classify_images.py --data.name path/to/images --model.name path/or/hub-id \\
        --augment.flip true --epochs 3 --output runs/images
        your own images (path/to/images/<label>/*.jpg) and model

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/classify_images.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass
from functools import partial

from toolkit import Config, Task, fine_tune
from toolkit.class_metrics import named_class_metrics
from toolkit.config.batch import BatchConfig
from toolkit.config.loss import LossConfig
from toolkit.config.model import ModelConfig
from toolkit.config.optim import Rates
from toolkit.details import class_details, right_class
from toolkit.losses import class_probabilities, logits_of
from toolkit.metrics import class_metrics, positive_class
from toolkit.models.export import pretrained_folder
from toolkit.models.heads import labels_of_head, read_for_head, saved_labels
from toolkit.models.load import IMAGE_CLASSIFIER, load_model
from toolkit.models.tiny import image_classifier
from toolkit.tasks.image_classification.augmentation import AugmentConfig
from toolkit.tasks.image_classification.confusion import with_confusion
from toolkit.tasks.image_classification.data import LabelledImages
from toolkit.tasks.image_classification.processor import Preparation, processor_of, stack_images


@dataclass(frozen=True)
class ClassifyImages(Config):
    rates = Rates(new=3e-3)

    model: ModelConfig = ModelConfig()
    """Which model is trained; the embedded one is a small ConvNeXt."""
    data: LabelledImages = LabelledImages(held_out=0.2)
    """Which images and labels it is trained on."""
    augment: AugmentConfig = AugmentConfig()
    """What is random about each training image."""
    loss: LossConfig = LossConfig()
    """How much which image counts."""
    batch: BatchConfig = BatchConfig(size=64)
    """How many samples a step takes and how they are cut."""
    epochs: float | None = 20
    """Passes over the training data; give epochs or steps, not both."""


def task(config: ClassifyImages) -> Task:
    only, size = config.evaluate.only, config.data.embedded_size
    images = read_for_head(config.data, saved_labels(config.model, IMAGE_CLASSIFIER), trained=only)
    loss, processor = images.loss(config.loss), processor_of(config.model, size)
    prepare = Preparation(processor, config.augment, config.data.background, config.data.size)
    head = {**labels_of_head(images.labels), "problem_type": "single_label_classification"}

    return Task(
        model=lambda runtime: load_model(
            config.model, IMAGE_CLASSIFIER, partial(image_classifier, size), settings=head, trained=only
        ),
        data=images.task_data(*images.sources()),
        transform=prepare.augmented,
        evaluate_transform=prepare.plain,
        collate=stack_images(config.model.dtype),
        units=loss.units,
        loss=lambda model, batch: loss(logits_of(model, batch), batch),
        predict=lambda model, batch: logits_of(model, batch).argmax(-1),
        scores=lambda model, batch: class_probabilities(images.labels, logits_of(model, batch)),
        metrics=class_metrics(images.labels),
        named_metrics=named_class_metrics(images.labels),
        probabilities=lambda model, batch: logits_of(model, batch).softmax(-1),
        baseline=images.baseline,
        details=class_details(images.labels),
        quality=right_class(images.labels),
        show=images.show,
        export=with_confusion(pretrained_folder(processor, None, "Image classification", "image-classification")),
        summary={
            "model": config.model.name or "the embedded ConvNeXt, with new weights",
            **prepare.summary,
            **positive_class(images.labels),
        },
    )


if __name__ == "__main__":
    fine_tune(ClassifyImages, task)
