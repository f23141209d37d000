"""The probability of a given translation is the product of those of its tokens."""

from pathlib import Path

import pytest
import torch

from nmt.bundle import load_bundle
from nmt.rescoring import rescore
from nmt.symbols import BOS, EOS, PAD, UNKNOWN


def test_it_is_that_of_a_softmax_over_all_or_over_what_is_producible(taught_model_folder: Path) -> None:
    """Token by token, each sentence by itself."""
    bundle = load_bundle(taught_model_folder)
    sources, targets = bundle.tokenizer.encode(["the house", "a cat sees the tree and the red light", ""]), [[50, 60, 70], [80], []]
    found = rescore(bundle.model, sources, targets)
    for source, target, one in zip(sources, targets, found, strict=True):
        plain = producible = 0.0
        for place, token in enumerate([*target, EOS]):
            with torch.no_grad():
                logits = bundle.model.logits(bundle.model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target[:place]]])))[0, -1]
            plain += float(logits.softmax(0)[token].log())
            logits[[PAD, UNKNOWN, BOS]] = -torch.inf
            producible += float(logits.softmax(0)[token].log())
        assert (one.plain, one.producible) == (pytest.approx(plain, abs=1e-4), pytest.approx(producible, abs=1e-4))
        assert one.producible > one.plain
