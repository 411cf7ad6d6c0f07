"""Numbers of layers, by which rates fall and pipelines are cut, follow the order in which layers are used, whatever
order the code of a model names them in."""

from typing import Any

import pytest
import torch
from small_families import has_head, small_model

from toolkit.models.packing import MODELS
from toolkit.models.parameters import layer_numbers, layer_stacks

CASES = [
    (kind, auto)
    for kind in sorted(MODELS - {"albert"})  # one layer, used several times
    for auto in ("AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification")
    if has_head(kind, auto)
]


@pytest.mark.parametrize(("kind", "auto"), CASES)
def test_they_grow_in_the_order_in_which_weights_are_used(kind: str, auto: str) -> None:
    model = small_model(kind, auto, pad_token_id=1)
    numbers, used = layer_numbers(model), dict[torch.Tensor, int]()
    (layers,) = layer_stacks(model).values()
    passed = 0

    def note(module: torch.nn.Module, *_: Any) -> None:
        nonlocal passed
        if module in list(layers):
            passed += 1
            used.update(dict.fromkeys(module.parameters(), passed))
        for parameter in module.parameters(recurse=False):
            used.setdefault(parameter, passed + 1 if passed == len(layers) else passed)

    for module in model.modules():
        module.register_forward_pre_hook(note)
    model(input_ids=torch.tensor([[3, 4, 5, 2]]))
    assert passed == len(layers) > 1
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[p]: numbers[p] for p in used} == {names[p]: number for p, number in used.items()}
