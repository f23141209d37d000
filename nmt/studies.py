"""Small studies of a trained model: what averaging more checkpoints changes, and what texts longer than those in training do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nmt.average import average
from nmt.batches import collate
from nmt.bundle import Bundle
from nmt.checkpoint import Checkpoint, build_model
from nmt.loss import batch_sums
from nmt.model import Transformer
from nmt.progress import Progress
from nmt.scoring import bleu
from nmt.search import DecodeConfig
from nmt.tokenizer import Tokenizer
from nmt.translation import Translator, best
from nmt.validation import held_out_loss

Pair = tuple[str, str]


@dataclass(frozen=True)
class Point:
    """What was measured at one place of an axis."""

    at: float
    loss: float  # nats per target token, unsmoothed
    bleu: float


def by_average(
    checkpoints: Sequence[Checkpoint],
    shards: Path,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    config: DecodeConfig,
    device: torch.device,
    batch_tokens: int,
) -> Iterator[Point]:
    """For the average of the last 1, 2, … checkpoints: loss on the valid text in `shards`, BLEU on `pairs`."""
    for count in range(1, len(checkpoints) + 1):
        state = checkpoints[-1].state
        model = build_model(state, average(checkpoints[-count:]), str(checkpoints[-1].folder)).to(device)
        loss = held_out_loss(model, shards / "valid", device, "float32").loss
        yield Point(
            count, loss, _bleu(Translator(Bundle(model, tokenizer, state), config, device, batch_tokens), pairs, f"average of {count}")
        )


def by_length(
    bundle: Bundle, groups: dict[int, list[Pair]], config: DecodeConfig, device: torch.device, batch_tokens: int
) -> Iterator[Point]:
    """Of each group of pairs, by its mean number of source tokens: loss and BLEU."""
    translator = Translator(bundle, config, device, batch_tokens)
    for length, pairs in groups.items():
        src, tgt = (bundle.tokenizer.encode([pair[side] for pair in pairs]) for side in (0, 1))
        mean = sum(map(len, src)) / len(src)
        yield Point(mean, _loss(bundle.model, src, tgt, device), _bleu(translator, pairs, f"{length} tokens"))


def joined(pairs: Sequence[Pair], lengths: Sequence[int], tokenizer: Tokenizer, count: int) -> dict[int, list[Pair]]:
    """For each of `lengths`, up to `count` texts of at least so many source tokens: lines in order, joined by a space.

    A corpus is cleaned of long sentences, so there are none longer than those in training. Lengths for which the text does not suffice
    for 4 are left out.
    """
    sizes = list(map(len, tokenizer.encode([source for source, _ in pairs])))
    found: dict[int, list[Pair]] = {}
    for length in lengths:
        texts: list[Pair] = []
        start, tokens = 0, 0
        for number, size in enumerate(sizes):
            tokens += size
            if tokens >= length:
                if tokens < 2 * length:
                    src, tgt = zip(*pairs[start : number + 1], strict=True)
                    texts.append((" ".join(src), " ".join(tgt)))
                start, tokens = number + 1, 0
            if len(texts) == count:
                break
        if len(texts) >= 4:
            found[length] = texts
    return found


@torch.inference_mode()
def _loss(model: Transformer, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], device: torch.device) -> float:
    nll, tokens = 0.0, 0
    for pair in zip(src, tgt, strict=True):
        batch = collate([tuple(np.asarray(side, np.int64) for side in pair)])  # type: ignore[list-item]
        nll += batch_sums(model, batch.to(device), 0.0, "float32")[1].item()
        tokens += batch.tokens
    return nll / tokens


def _bleu(translator: Translator, pairs: Sequence[Pair], label: str) -> float:
    sources = [source for source, _ in pairs]
    with Progress(label, len(pairs), "lines", work=sum(map(len, sources))) as progress:
        found = translator.translate(sources, report=progress.advance_by)
    return bleu([best(translations) for translations in found], [reference for _, reference in pairs]).score
