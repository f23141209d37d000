"""Text to text: N lines in, N translations out, in order; a blank line stays blank and the model is not asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nmt.batches import padded
from nmt.bundle import Bundle
from nmt.decoder import CachedDecoder
from nmt.errors import UserError
from nmt.lines import is_blank
from nmt.model import LEARNED_POSITIONS
from nmt.search import DecodeConfig, Hypothesis, beam_search

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


class Translator:
    """A model on a device, ready to translate with the settings of `config`, at most `batch_tokens` padded source tokens at once."""

    def __init__(self, bundle: Bundle, config: DecodeConfig, device: torch.device, batch_tokens: int) -> None:
        self.tokenizer, self.config, self.device, self.batch_tokens = bundle.tokenizer, config, device, batch_tokens
        kind = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
        self.model = bundle.model.to(device, kind).eval()

    def translate(
        self, lines: Sequence[str], nbest: int = 1, report: Callable[[int], None] = lambda lines: None, name: str = "input", first: int = 1
    ) -> list[list[Translation]]:
        """Up to `nbest` translations of each line, best first; none of a blank line. `report` is told how many lines were done.

        Raises UserError when a line is longer than the model's positions reach; `name` says where the lines come from, `first` is the
        number of the first one there.
        """
        sources = self.tokenizer.encode(lines)
        results: list[list[Translation]] = [[] for _ in lines]
        todo = [i for i, line in enumerate(lines) if not is_blank(line)]
        if self.model.config.positions == "learned":
            for index in todo:
                if len(sources[index]) >= LEARNED_POSITIONS:
                    raise UserError(
                        f"{name}, line {first + index}: {len(sources[index])} tokens, but the model's learned positions reach only "
                        f"{LEARNED_POSITIONS - 1}: cut the line"
                    )
        report(len(lines) - len(todo))
        for batch in self._batches(todo, [len(source) for source in sources]):
            for index, hypotheses in zip(batch, self._search([sources[i] for i in batch], nbest), strict=True):
                results[index] = [Translation(self._text(h.ids), h.score, h.log_prob, len(h.ids) + 1, h.finished) for h in hypotheses]
            report(len(batch))
        return results

    def _batches(self, todo: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Cut the lines `todo`, longest first, so that running out of memory shows at once."""
        batches: list[list[int]] = []
        for index in sorted(todo, key=lambda i: (-lengths[i], i)):
            if not batches or (len(batches[-1]) + 1) * (lengths[batches[-1][0]] + 1) > self.batch_tokens:
                batches.append([])
            batches[-1].append(index)
        return batches

    @torch.inference_mode()
    def _search(self, sources: Sequence[list[int]], nbest: int) -> list[list[Hypothesis]]:
        decoder = CachedDecoder(self.model, padded(sources).to(self.device))
        limits = [len(source) + self.config.max_length_offset for source in sources]
        if self.model.config.positions == "learned":
            limits = [min(limit, LEARNED_POSITIONS - 1) for limit in limits]
        return beam_search(decoder, limits, self.config, nbest)

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids).translate(NOT_IN_A_LINE)
