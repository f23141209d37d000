"""Text to text: N lines in, N translations out, in order; a blank line stays blank and the model is not asked.

A translation depends on the line, the models and the settings, on nothing else: what a source is padded to is a function of it alone, and
`nmt.products` sees to it that how many rows and sentences there are changes no bit.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from nmt.batches import padded
from nmt.bundle import Bundle
from nmt.decoder import CachedDecoder, Ensemble, bytes_of_sentence
from nmt.errors import UserError
from nmt.lines import is_blank
from nmt.model import LEARNED_POSITIONS
from nmt.products import MOST_ROWS, Decoding
from nmt.search import DecodeConfig, Hypothesis, NextLogProbs, beam_search, sample

LONGEST = 2048  # tokens of a source: the memory of attention grows with the square of them
LONGEST_PREFIX = 256  # tokens: each is a step for every line
LEAST_WIDTH, COARSE_WIDTH = 8, 128  # tokens that a source is padded to at least, and up to which it is padded to a power of two
STEP = 25  # rows that take as long as a step does besides, about
MOST_WIDTHS = 5  # in a batch: each is a product more for attention
MOST_BYTES = 1 << 27  # of a batch, as far as one sentence does not need more
MOST_BYTES_OF_A_GPU = 1 << 32
# A model can spell any byte. These three would end a line, lose its last character, or make the file unreadable.
NOT_IN_A_LINE = str.maketrans(dict.fromkeys("\n\r\0", " "))


@dataclass(frozen=True)
class Translation:
    """One hypothesis as text."""

    text: str
    score: float  # log_prob over the length penalty
    log_prob: float  # of all tokens, end symbol included
    tokens: int  # end symbol counted
    finished: bool  # false where it was cut at the maximum length


def best(translations: Sequence[Translation]) -> str:
    """The text of the best of the translations of a line; of a blank line, which has none, nothing."""
    return translations[0].text if translations else ""


def near_ties(results: Iterable[Sequence[Translation]], margin: float = 1e-5) -> int:
    """How many of the lines have a second best translation whose score is within `margin`, about what rounding can do, of the best's."""
    return sum(len(found) > 1 and found[0].score - found[1].score < margin for found in results)


class Translator:
    """A model on a device, ready to translate with the settings of `config`, at most `batch_tokens` padded source tokens at once.

    Of several models, which must share a tokenizer, the probabilities are averaged token by token. Raises UserError when they do not.
    The models themselves are put on the device and into evaluation, and else left as they are.
    """

    def __init__(
        self,
        bundle: Bundle | Sequence[Bundle],
        config: DecodeConfig,
        device: torch.device,
        batch_tokens: int,
        compiled: bool = False,
    ) -> None:
        """`compiled`: through torch.compile, on a GPU. What processors multiply by is laid out in a way that it does not know."""
        compiled = compiled and device.type == "cuda"
        bundles = [bundle] if isinstance(bundle, Bundle) else list(bundle)
        if len({each.tokenizer.sha256 for each in bundles}) > 1:
            raise UserError("these models have different tokenizers: only models with one tokenizer can translate together")
        self.tokenizer, self.config, self.batch_tokens = bundles[0].tokenizer, config, batch_tokens
        self.models = [Decoding(each.model.to(device).eval(), config.precision, device, compiled) for each in bundles]
        learned = any(each.model.config.positions == "learned" for each in bundles)
        self.positions = LEARNED_POSITIONS if learned else None  # how many there are, None without limit

    def translate(
        self,
        lines: Sequence[str],
        nbest: int = 1,
        report: Callable[[int, float], None] = lambda lines, work: None,
        name: str = "input",
        first: int = 1,
        prefix: str = "",
        seed: int | None = None,
    ) -> list[list[Translation]]:
        """Up to `nbest` translations of each line, best first; none of a blank line.

        `report` is told at every step how many lines are done since the last time, and how much of the work, all of which is as much as
        the lines have characters. All begin with the pieces of `prefix`. With a `seed`, `nbest` translations are drawn from the model's
        probabilities instead of
        searched, and stand in the order of drawing; what is drawn depends on the seed and the line.
        Raises UserError when a line is longer than LONGEST or than the model's positions reach; `name` says where the lines come from,
        `first` is the number of the first one there. The same for a prefix longer than LONGEST_PREFIX.
        """
        [begin] = self.tokenizer.encode([prefix])
        self._check(len(begin), "the prefix", "a prefix", LONGEST_PREFIX, "shorten it")
        sources = self.tokenizer.encode(lines)
        results: list[list[Translation]] = [[] for _ in lines]
        todo = [i for i, line in enumerate(lines) if not is_blank(line)]
        for index in todo:
            self._check(len(sources[index]), f"{name}, line {first + index}", "a line", LONGEST, "cut the line")
        report(len(lines) - len(todo), float(sum(map(len, lines)) - sum(len(lines[i]) for i in todo)))
        beams = self.config.beam_size if seed is None else nbest
        batches = self._batches(todo, [len(source) for source in sources], beams)
        # If what is written is as long as what is read.
        costs = [sum(len(sources[i]) + 1 for i in batch) * beams + (len(sources[batch[0]]) + 1) * STEP for batch in batches]
        unit = sum(len(lines[i]) for i in todo) / max(1, sum(costs))
        for batch, cost in zip(batches, costs, strict=True):
            steps = _Steps(cost * unit, unit, partial(report, 0))
            found = self._search([sources[i] for i in batch], beams, nbest, begin, seed, steps)
            for index, hypotheses in zip(batch, found, strict=True):
                results[index] = [Translation(self._text(h.ids), h.score, h.log_prob, len(h.ids) + 1, h.finished) for h in hypotheses]
            report(len(batch), steps.left)
        return results

    def _check(self, tokens: int, what: str, kind: str, most: int, remedy: str) -> None:
        if self.positions is not None and tokens >= self.positions:
            raise UserError(f"{what}: {tokens} tokens, but the model's learned positions reach only {self.positions - 1}: {remedy}")
        if tokens > most:
            raise UserError(f"{what}: {tokens:,} tokens, but {kind} may have {most:,}: {remedy}")

    def _batches(self, todo: Sequence[int], lengths: Sequence[int], beams: int) -> list[list[int]]:
        """Cut the lines `todo` into batches, longest first, so that running out of memory shows at once."""
        on_gpu = self.models[0].device.type == "cuda"
        most_bytes = MOST_BYTES_OF_A_GPU if on_gpu else MOST_BYTES
        # More rows than a product takes at once gain nothing on a processor.
        most_lines = len(todo) if on_gpu else MOST_ROWS // beams
        batches: list[list[int]] = []
        widths: set[int] = set()
        tokens = size = 0
        for index in sorted(todo, key=lambda i: (-lengths[i], i)):
            width = _width(lengths[index] + 1)
            each = sum(bytes_of_sentence(model, width, beams) for model in self.models)
            tokens, size, widths = tokens + width, size + each, widths | {width}
            full = tokens > self.batch_tokens or size > most_bytes or len(widths) > MOST_WIDTHS
            if not batches or full or len(batches[-1]) >= most_lines:
                tokens, size, widths = width, each, {width}
                batches.append([])
            batches[-1].append(index)
        return batches

    @torch.inference_mode()
    def _search(
        self, sources: Sequence[list[int]], beams: int, nbest: int, begin: list[int], seed: int | None, steps: "_Steps"
    ) -> list[list[Hypothesis]]:
        groups = [list(group) for _, group in groupby(sources, lambda source: _width(len(source) + 1))]
        src = [padded(group, _width).to(self.models[0].device) for group in groups]
        limits = [len(source) + self.config.max_length_offset for source in sources]
        if self.positions is not None:
            limits = [min(limit, self.positions - 1) for limit in limits]
        decoders = [CachedDecoder(model, src, beams) for model in self.models]
        next_log_probs = steps.over(decoders[0] if len(decoders) == 1 else Ensemble(decoders))
        prefixes = [begin] * len(sources)
        if seed is None:
            return beam_search(next_log_probs, limits, self.config, nbest, prefixes)
        return sample(next_log_probs, limits, self.config, [_seed(seed, source) for source in sources], nbest, prefixes)

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids).translate(NOT_IN_A_LINE)


class _Steps:
    """Tells the work of a batch step by step, each of which is `unit` for a row and for what a step takes besides."""

    def __init__(self, work: float, unit: float, report: Callable[[float], None]) -> None:
        self.left, self.unit, self.report = work, unit, report

    def over(self, next_log_probs: NextLogProbs) -> NextLogProbs:
        """The same function, whose calls are steps."""

        def counted(tokens: Tensor, parents: Tensor) -> Tensor:
            done = min(self.unit * (len(tokens) + STEP), self.left)
            self.left -= done
            self.report(done)
            return next_log_probs(tokens, parents)

        return counted


def _width(tokens: int) -> int:
    """What sources of so many tokens, end symbol counted, are padded to: 8, 16, 32, 64, 128, 160, 192, …; a batch holds few widths.

    Short sources are padded much, for what the encoder does for nothing is little beside what a width more costs at every step.
    """
    power = 1 << (tokens - 1).bit_length()
    step = max(LEAST_WIDTH, power if power <= COARSE_WIDTH else power >> 3)
    return -(-tokens // step) * step


def _seed(seed: int, source: Sequence[int]) -> int:
    """Of one sentence: a function of the user's seed and the source."""
    return int.from_bytes(hashlib.blake2b(repr((seed, list(source))).encode(), digest_size=8).digest(), "big")
