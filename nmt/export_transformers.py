"""Export to Hugging Face transformers: a Marian checkpoint, which is the same Transformer with its sinusoids in another order.

    config.json, generation_config.json, model.safetensors          what AutoModelForSeq2SeqLM loads
    source.spm, target.spm, vocab.json, tokenizer_config.json       what AutoTokenizer loads

Marian's positions have all sines first and then all cosines, ours alternate. The dimensions of the model are therefore permuted: of every
matrix the rows that write to them, the columns that read them, and the norms between. Products and norms do not see the order.
"""

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, MarianConfig, MarianMTModel

from nmt.batches import padded
from nmt.bundle import TOKENIZER, Bundle
from nmt.export_weights import output_bias, projections
from nmt.model import DecoderLayer, EncoderLayer, Transformer
from nmt.proof import Found, Search
from nmt.symbols import BOS, EOS, PAD, UNKNOWN

POSITIONS = 1024  # Marian computes its table whenever it is loaded, number by number


def write(bundle: Bundle, model_folder: Path, folder: Path, precision: str) -> None:
    """Write the model, read from `model_folder`, to `folder`. `precision` must be float32."""
    _be_quiet()
    config = bundle.model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=bundle.model.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.layers,
            decoder_layers=config.layers,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            activation_function="relu",
            dropout=config.dropout,
            scale_embedding=True,
            max_position_embeddings=POSITIONS,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    )
    given = marian.load_state_dict(weights(bundle.model), strict=False)
    assert not given.unexpected_keys, given.unexpected_keys
    assert all("embed_" in name or name == "lm_head.weight" for name in given.missing_keys), given.missing_keys  # tied, or the sinusoids
    proven = Search()
    marian.generation_config = GenerationConfig(
        num_beams=proven.beam_size,
        length_penalty=proven.alpha,
        early_stopping=True,
        max_length=POSITIONS,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    marian.save_pretrained(folder)
    _write_tokenizer(bundle, model_folder, folder)


def weights(model: Transformer) -> dict[str, Tensor]:
    """The weights of `model` under Marian's names, in Marian's order of dimensions."""
    heads, dimensions = model.config.heads, model.config.d_model
    order = torch.cat([torch.arange(0, dimensions, 2), torch.arange(1, dimensions, 2)])  # sines, then cosines
    found = {"model.shared.weight": model.embedding.weight[:, order], "final_logits_bias": output_bias(model.vocab_size)[None]}

    def reads(name: str, weight: Tensor, its_bias: Tensor) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = weight[:, order], its_bias

    def writes(name: str, linear: nn.Linear) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = linear.weight[order], linear.bias[order]

    def norm(name: str, norm: nn.LayerNorm) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = norm.weight[order], norm.bias[order]

    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            at = f"model.{side}.layers.{number}"
            for name, pair in zip("qkv", projections(layer.self_attention.query_key_value, heads, 3), strict=True):
                reads(f"{at}.self_attn.{name}_proj", *pair)
            writes(f"{at}.self_attn.out_proj", layer.self_attention.output)
            norm(f"{at}.self_attn_layer_norm", layer.self_norm)
            if isinstance(layer, DecoderLayer):
                cross = layer.cross_attention
                reads(f"{at}.encoder_attn.q_proj", cross.query.weight, cross.query.bias)
                for name, pair in zip("kv", projections(cross.key_value, heads, 2), strict=True):
                    reads(f"{at}.encoder_attn.{name}_proj", *pair)
                writes(f"{at}.encoder_attn.out_proj", cross.output)
                norm(f"{at}.encoder_attn_layer_norm", layer.cross_norm)
            reads(f"{at}.fc1", layer.feed_forward.inner.weight, layer.feed_forward.inner.bias)
            writes(f"{at}.fc2", layer.feed_forward.outer)
            norm(f"{at}.final_layer_norm", layer.feed_forward_norm)
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in found.items()}


def _write_tokenizer(bundle: Bundle, model_folder: Path, folder: Path) -> None:
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(model_folder / TOKENIZER, folder / name)
    pieces = bundle.tokenizer.pieces(range(bundle.model.vocab_size))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": pieces[PAD],
        "unk_token": pieces[UNKNOWN],
        "eos_token": pieces[EOS],
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is four characters
    }
    _write_json(folder / "vocab.json", {piece: number for number, piece in enumerate(pieces)})
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _be_quiet() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


class Engine:
    """transformers with the exported checkpoint in `folder`, tokenizer included, as a user would run it."""

    positions = POSITIONS

    def __init__(self, folder: Path, device: torch.device) -> None:
        _be_quiet()
        with warnings.catch_warnings(action="ignore"):  # of a package for normalizing punctuation, which is not asked to
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).to(device).eval()
        self.name = f"transformers {transformers.__version__}"
        self.arithmetic = f"{str(self.model.dtype).removeprefix('torch.')} on {device.type}"

    @torch.inference_mode()
    def translate(self, lines: Sequence[str], longest: int, search: Search) -> list[Found]:
        """The best translation of each line, of at most `longest` tokens with the end symbol."""
        sources = self.tokenizer(list(lines))["input_ids"]  # each with its end symbol
        src = padded([source[:-1] for source in sources]).to(self.model.device)
        found = self.model.generate(
            input_ids=src,
            attention_mask=(src != PAD).long(),
            num_beams=search.beam_size,
            length_penalty=search.alpha,
            early_stopping=True,
            max_length=None,
            max_new_tokens=longest,
            return_dict_in_generate=True,
            output_scores=True,
        )
        rows, scores = found.sequences[:, 1:].tolist(), found.sequences_scores.tolist()  # without the begin symbol
        return [self._found(source[:-1], row, score) for source, row, score in zip(sources, rows, scores, strict=True)]

    def _found(self, source: list[int], row: list[int], score: float) -> Found:
        finished = EOS in row
        ids = row[: row.index(EOS)] if finished else row
        return Found(self.tokenizer.decode(ids), source, ids, score, finished)
