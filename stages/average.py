"""Stage `average`: the last checkpoints to one whole model, with its loss on the validation set beside the last one's."""

import json
from pathlib import Path
from typing import Any

from nmt import hardware
from nmt.errors import UserError
from nmt.json_files import WAY_OUT
from nmt.languages import Languages
from nmt.outputs import whole_file
from stages import params
from stages.command import run


def main(corpus: str, variant: str, checkpoints: Path, tokenizer: Path, shards: Path, averaged: Path, summary: Path) -> None:
    """Average the last checkpoints in `checkpoints`; write the model folder `averaged` and the file `summary`."""
    device = hardware.prepare(params.load("hardware", hardware.HardwareConfig))
    from nmt.average import AverageConfig, average
    from nmt.bundle import save_bundle
    from nmt.checkpoint import DamagedCheckpoint, build_model, open_checkpoint
    from nmt.checkpoint import checkpoints as checkpoints_in
    from nmt.tokenizer import Tokenizer
    from nmt.validation import held_out_loss

    config = params.load(f"{variant}.average", AverageConfig)
    languages = params.load(f"{corpus}.languages", Languages)
    found = checkpoints_in(checkpoints)
    if len(found) < config.last:
        raise UserError(f"{variant}.average.last is {config.last}, but {checkpoints} holds only {len(found)}: raise train.checkpoints_kept")
    try:
        chosen = [open_checkpoint(folder) for folder in found[-config.last :]]
        state, weights = chosen[-1].state, average(chosen)
    except DamagedCheckpoint as error:
        raise UserError(f"{error}; {WAY_OUT}") from None

    def loss(these: dict[str, Any]) -> dict[str, float]:
        model = build_model(state, these, str(checkpoints)).to(device)
        measured = held_out_loss(model, shards / "valid", device, "float32")
        return {"loss": measured.loss, "perplexity": measured.perplexity, "tokens": measured.tokens}

    found_loss = {"average": loss(weights), "last": loss(chosen[-1].weights())}
    used = [{"step": c.step, "sha256": c.sha256} for c in chosen]
    config_of_model = {
        **{key: state[key] for key in ("model", "vocab_size", "seed", "train")},
        "languages": languages.model_dump(),
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "averaged": used,
        "tokenizer_sha256": Tokenizer.load(tokenizer).sha256,
    }
    save_bundle(averaged, weights, tokenizer, config_of_model)
    with whole_file(summary) as building:
        building.write_text(json.dumps({"checkpoints": used, "valid": found_loss}, indent=1) + "\n", encoding="utf-8")
    for name, values in found_loss.items():
        print(f"average: {name:7} valid loss {values['loss']:.4f}, perplexity {values['perplexity']:.3f}")


if __name__ == "__main__":
    run(main)
