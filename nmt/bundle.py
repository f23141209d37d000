"""A whole model in a folder: everything that translating needs, and what it was trained on.

    averaged/
        model.safetensors   weights by name
        tokenizer.model     SentencePiece
        config.json         model, vocab_size, languages, sha256 of the weights, and the training's parameters and hashes

`nmt translate FOLDER < in > out` needs nothing else.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from nmt.checkpoint import build_model, file_sha256
from nmt.errors import UserError
from nmt.json_files import WAY_OUT, read_object
from nmt.model import Transformer
from nmt.outputs import whole_folder
from nmt.tokenizer import Tokenizer

WEIGHTS, TOKENIZER, CONFIG = "model.safetensors", "tokenizer.model", "config.json"


@dataclass(frozen=True)
class Bundle:
    """A model ready to translate."""

    model: Transformer
    tokenizer: Tokenizer
    config: dict[str, Any]


def save_bundle(folder: Path, weights: dict[str, Tensor], tokenizer: Path, config: dict[str, Any]) -> None:
    """Write the folder, whole or not at all. `config` must hold `model`, `vocab_size` and `tokenizer_sha256`."""
    with whole_folder(folder) as building:
        (building / WEIGHTS).write_bytes(save(weights))  # safetensors' own files are for their owner's eyes alone
        shutil.copyfile(tokenizer, building / TOKENIZER)
        whole = {**config, "weights_sha256": file_sha256(building / WEIGHTS)}
        (building / CONFIG).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def load_bundle(folder: Path) -> Bundle:
    """Read the folder. Raises UserError when it is not a whole model."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name the one that the stage `average` wrote (runs/<corpus>/<variant>/averaged)")
    missing = [name for name in (WEIGHTS, TOKENIZER, CONFIG) if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} is not a model: {', '.join(missing)} is missing; name the folder that the stage `average` wrote")
    config = read_object(folder / CONFIG, "weights_sha256", "tokenizer_sha256", "model", "vocab_size")
    try:
        tokenizer, weights_sha256 = Tokenizer.load(folder / TOKENIZER), file_sha256(folder / WEIGHTS)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}; {WAY_OUT}") from None
    if tokenizer.sha256 != config["tokenizer_sha256"]:
        raise UserError(f"{folder / TOKENIZER} is not the tokenizer that the model was trained with: {WAY_OUT}")
    if config["vocab_size"] != tokenizer.vocab_size:
        raise UserError(f"{folder / CONFIG} is damaged, for its vocab_size is not the tokenizer's {tokenizer.vocab_size}: {WAY_OUT}")
    if config["weights_sha256"] != weights_sha256:
        raise UserError(f"{folder / WEIGHTS} is damaged, for it is not the file that {CONFIG} describes: {WAY_OUT}")
    try:
        model = build_model(config, load_file(folder / WEIGHTS), str(folder / CONFIG))
    except SafetensorError:
        raise UserError(f"{folder / WEIGHTS} holds no weights: {WAY_OUT}") from None
    return Bundle(model, tokenizer, config)
