"""SentencePiece: one joint vocabulary for both languages, with byte fallback, so that no character is ever unknown.

Ids 0 to 3 are padding, unknown (never produced), begin and end of sentence. The text is given to the trainer by
iterator and one thread trains, because a model file records its trainer's input paths and thread count.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from pydantic import Field

from nmt.config import Config
from nmt.errors import UserError
from nmt.symbols import BOS, EOS, PAD, UNKNOWN

MAX_LINE_BYTES = 1 << 30  # the most that the trainer can be told; it skips longer lines in silence
UNSUITABLE = {  # what the trainer says of a text that does not suit vocab_size, and what that means
    r"Vocabulary size too high .* a value <= (\d+)": "the training text yields only {0} pieces: lower it to {0} or less",
    r"smaller than required_chars\. \d+ vs (\d+)": "bytes and characters of the training text alone are {0} pieces: raise it above that",
    r"!sentences_\.empty\(\)": "there is no training text: cleaning kept no line",
}


class TokenizerConfig(Config):
    """Section `corpora.<c>.tokenizer`."""

    type: Literal["bpe", "unigram"]
    vocab_size: int = Field(ge=300, le=10_000_000)  # 256 bytes and the special pieces are part of it
    normalization: Literal["identity", "nfkc", "nmt_nfkc"]
    sample_lines: int = Field(ge=1)


class Tokenizer:
    """A trained model: text to ids and back."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.load_from_serialized_proto(model)
        self.vocab_size: int = self._processor.get_piece_size()
        self.sha256 = hashlib.sha256(model).hexdigest()

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """The tokenizer in the file `path`. Raises UserError when it is missing or not a SentencePiece model."""
        try:
            return cls(path.read_bytes())
        except FileNotFoundError:
            raise UserError(f"{path} is missing: it is written by the stage `tokenizer`") from None
        except RuntimeError:
            raise UserError(f"{path} is not a SentencePiece model, or is damaged: run the stage that wrote it again") from None

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, without begin or end of sentence."""
        return self._processor.encode(list(lines))  # type: ignore[no-any-return]

    def encode_arrays(self, lines: Sequence[str]) -> list[NDArray[np.int32]]:
        """The same as arrays, on one thread: for those who keep all cores busy themselves."""
        return self._processor.encode(list(lines), num_threads=1, return_type="numpy")  # type: ignore[no-any-return]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, which hold no special pieces."""
        return self._processor.decode(list(ids))  # type: ignore[no-any-return]

    def likeliest(self, line: str, count: int) -> list[tuple[list[int], float]]:
        """Of a unigram model: the `count` likeliest segmentations of a line, or all if there are fewer, each with its log probability.

        Up to a constant of the line, which the characters outside the vocabulary have in common.
        """
        found = self._processor.nbest_encode(line, nbest_size=count)
        return [(ids, sum(self._processor.get_score(ids))) for ids in found]

    def vocabulary(self) -> list[tuple[str, float]]:
        """The piece and the score behind each id; of special pieces and bytes the piece is empty."""
        model = self._processor
        plain = [not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i)) for i in range(self.vocab_size)]
        return [(model.id_to_piece(i) if plain[i] else "", model.get_score(i)) for i in range(self.vocab_size)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind the ids, for people to read."""
        return [self._processor.id_to_piece(i) for i in ids]


def train_tokenizer(lines: Iterable[str], config: TokenizerConfig, section: str) -> bytes:
    """Train on `lines` and return the model file's content: the same for the same lines on any machine.

    Raises UserError, which names the parameter by its `section` (corpora.<c>.tokenizer), when the text does not suit `vocab_size`.
    What `lines` raises is passed on.
    """
    model = io.BytesIO()
    failed: list[BaseException] = []

    def watched() -> Iterator[str]:
        try:
            yield from lines
        except BaseException as error:  # the trainer turns every exception into one of its own
            failed.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=watched(),
            model_writer=model,
            model_type=config.type,
            vocab_size=config.vocab_size,
            normalization_rule_name=config.normalization,
            remove_extra_whitespaces=False,
            byte_fallback=True,
            character_coverage=0.9995,
            max_sentence_length=MAX_LINE_BYTES,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            num_threads=1,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except RuntimeError as error:
        if failed:
            raise failed[0] from None
        for pattern, explanation in UNSUITABLE.items():
            if found := re.search(pattern, str(error)):
                raise UserError(f"{section}.vocab_size is {config.vocab_size}, but {explanation.format(*found.groups())}") from None
        raise
    return model.getvalue()
