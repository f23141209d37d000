"""Export to CTranslate2: the model by the engine's own specification, and the engine itself to try it with.

model.bin, config.json, shared_vocabulary.json    what ctranslate2.Translator loads
tokenizer.model                                   SentencePiece: text to the pieces that it translates, and back

pieces = sentencepiece.SentencePieceProcessor("DIR/tokenizer.model").encode(line, out_type=str)
ctranslate2.Translator("DIR").translate_batch([pieces], beam_size=4)
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import torch
from ctranslate2.specs import Activation, TransformerSpec
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor
from torch import Tensor, nn

from nmt.bundle import TOKENIZER, Bundle
from nmt.export_weights import output_bias, projections
from nmt.model import CrossAttention, DecoderLayer, EncoderLayer, SelfAttention, sinusoids
from nmt.proof import Found, Search
from nmt.symbols import BOS, EOS, UNKNOWN

POSITIONS = 4096  # the table of sinusoids that goes with the model: the engine's own have other wavelengths


def write(bundle: Bundle, model_folder: Path, folder: Path, precision: str) -> None:
    """Write the model, read from `model_folder`, to `folder`, its weights in `precision`."""
    model, config = bundle.model, bundle.model.config
    spec = TransformerSpec.from_config((config.layers, config.layers), config.heads, pre_norm=False, activation=Activation.RELU)
    embedding, positions = _array(model.embedding.weight), _array(sinusoids(POSITIONS, config.d_model))
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = embedding
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = True
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = positions
    spec.decoder.projection.bias = _array(output_bias(model.vocab_size))
    for side, layers in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        for target, layer in zip(side.layer, layers, strict=True):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            _self_attention(target.self_attention, layer.self_attention)
            _norm(target.self_attention.layer_norm, layer.self_norm)
            if isinstance(layer, DecoderLayer):
                _cross_attention(target.attention, layer.cross_attention)
                _norm(target.attention.layer_norm, layer.cross_norm)
            _linear(target.ffn.linear_0, layer.feed_forward.inner)
            _linear(target.ffn.linear_1, layer.feed_forward.outer)
            _norm(target.ffn.layer_norm, layer.feed_forward_norm)
    pieces = bundle.tokenizer.pieces(range(model.vocab_size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = pieces[UNKNOWN], pieces[BOS], pieces[EOS]
    spec.config.decoder_start_token, spec.config.add_source_eos = pieces[BOS], True
    spec.validate()
    spec.optimize(precision)
    spec.save(str(folder))
    shutil.copyfile(model_folder / TOKENIZER, folder / TOKENIZER)


class Engine:
    """CTranslate2 with the exported model in `folder`, as a user would run it."""

    positions = POSITIONS

    def __init__(self, folder: Path, device: torch.device) -> None:
        ctranslate2.set_log_level(logging.ERROR)  # `arithmetic` tells what it would warn of: float16 is no type of most CPUs
        place = "cuda" if device.type == "cuda" and ctranslate2.get_cuda_device_count() else "cpu"
        self.translator = ctranslate2.Translator(str(folder), device=place, intra_threads=torch.get_num_threads())
        self.pieces = SentencePieceProcessor(model_file=str(folder / TOKENIZER))
        self.name = f"ctranslate2 {ctranslate2.__version__}"
        self.arithmetic = f"{self.translator.compute_type} on {place}"

    def translate(self, lines: Sequence[str], longest: int, search: Search) -> list[Found]:
        """The best translation of each line, of at most `longest` tokens with the end symbol."""
        sources = self.pieces.encode(list(lines))
        results = self.translator.translate_batch(
            [[self.pieces.id_to_piece(i) for i in source] for source in sources],
            beam_size=search.beam_size,
            length_penalty=search.alpha,
            min_decoding_length=0,  # an end at once is a translation too
            max_decoding_length=longest,
            max_input_length=0,
            return_scores=True,
            return_end_token=True,
        )
        return [self._found(source, result.hypotheses[0], result.scores[0]) for source, result in zip(sources, results, strict=True)]

    def _found(self, source: list[int], pieces: list[str], score: float) -> Found:
        finished = pieces[-1:] == [self.pieces.id_to_piece(EOS)]
        ids = [self.pieces.piece_to_id(piece) for piece in (pieces[:-1] if finished else pieces)]
        return Found(self.pieces.decode(ids), source, ids, score, finished)


def _self_attention(target: object, source: SelfAttention) -> None:
    joined = projections(source.query_key_value, source.heads, 3)
    _fill(target.linear[0], torch.cat([w for w, _ in joined]), torch.cat([b for _, b in joined]))  # type: ignore[attr-defined]
    _linear(target.linear[1], source.output)  # type: ignore[attr-defined]


def _cross_attention(target: object, source: CrossAttention) -> None:
    joined = projections(source.key_value, source.heads, 2)
    _linear(target.linear[0], source.query)  # type: ignore[attr-defined]
    _fill(target.linear[1], torch.cat([w for w, _ in joined]), torch.cat([b for _, b in joined]))  # type: ignore[attr-defined]
    _linear(target.linear[2], source.output)  # type: ignore[attr-defined]


def _linear(target: object, source: nn.Linear) -> None:
    _fill(target, source.weight, source.bias)


def _fill(target: object, weight: Tensor, bias: Tensor) -> None:
    target.weight, target.bias = _array(weight), _array(bias)  # type: ignore[attr-defined]


def _norm(target: object, source: nn.LayerNorm) -> None:
    target.gamma, target.beta = _array(source.weight), _array(source.bias)  # type: ignore[attr-defined]


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """A copy, because the engine quantizes in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
