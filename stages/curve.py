"""Stage `curve`: BLEU over updates. Each checkpoint that a training left behind translates valid, as `translate` and `score` do.

Off unless `reproduce.curves` names the variant. It stands apart from the training, so a change of `decode` trains nothing again.

update   bleu    chrf
95000    26.31   55.90
"""

from pathlib import Path

from nmt import hardware
from nmt.errors import UserError
from nmt.json_files import WAY_OUT
from nmt.languages import Languages
from nmt.lines import read_exact
from nmt.outputs import whole_file
from nmt.progress import Progress
from stages import params
from stages.command import run

SET = "valid"


def main(corpus: str, checkpoints: Path, tokenizer: Path, raw: Path, curve: Path) -> None:
    """Write the table `curve` of all `checkpoints` on valid of the section `corpus`. Raises UserError when there is no checkpoint."""
    machine = params.load("hardware", hardware.HardwareConfig)
    device = hardware.prepare(machine)
    from nmt.bundle import Bundle
    from nmt.checkpoint import DamagedCheckpoint, build_model, open_checkpoint
    from nmt.checkpoint import checkpoints as checkpoints_in
    from nmt.scoring import bleu, chrf
    from nmt.search import DecodeConfig
    from nmt.tokenizer import Tokenizer
    from nmt.translation import Translator, best

    found = checkpoints_in(checkpoints)
    if not found:
        raise UserError(f"{checkpoints} holds no checkpoints: run the stage `train` again")
    config = params.load("decode", DecodeConfig)
    languages = params.load(f"{corpus}.languages", Languages)
    pieces = Tokenizer.load(tokenizer)
    source = raw / f"{SET}.{languages.src}"
    sources, references = (list(read_exact(raw / f"{SET}.{language}")) for language in (languages.src, languages.tgt))
    rows = ["update\tbleu\tchrf"]
    work = len(found) * sum(map(len, sources))
    with Progress("curve", len(found) * len(sources), "lines", work=work) as progress:
        for folder in found:
            try:
                checkpoint = open_checkpoint(folder)
                model = build_model(checkpoint.state, checkpoint.weights(), str(folder))
            except DamagedCheckpoint as error:
                raise UserError(f"{error}; {WAY_OUT}") from None
            translator = Translator(Bundle(model, pieces, checkpoint.state), config, device, machine.decode_tokens)
            results = translator.translate(sources, 1, progress.advance_by, str(source))
            hypotheses = list(map(best, results))
            scores = bleu(hypotheses, references), chrf(hypotheses, references)
            rows.append("\t".join([str(checkpoint.step), *(f"{score.score:.2f}" for score in scores)]))
    with whole_file(curve) as building:
        building.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
