"""Speed of decoding beside others, as ratios in one run.

    python benchmarks/decode.py                                             small and base, every precision, ours alone
    python benchmarks/decode.py --peers PYTHON                              beside CTranslate2 and Marian of transformers, found there
    python benchmarks/decode.py --peers PYTHON --configs base --precisions int8 --rounds 5
    python benchmarks/decode.py --peers PYTHON --model AVERAGED --exported FOLDER --source FILE --reference FILE
                                                                            a trained model, as `nmt export --to ctranslate2` wrote it

Without --model all models have random weights, and every sentence gets exactly as many tokens as its source has: 8 groups of 32 sources,
the sources of a group equally long (8 to 58 tokens), beam 4. So all contenders take the same number of steps. With --model the ends are the
model's own, and BLEU stands beside the speed. Each contender runs in a process of its own, in turn, several rounds. The time of a group is
the fastest of all rounds, because the machine may be shared; with --threads 1 it is the processor's time, which others disturb less. The
ratios are printed last.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where nmt is

CONFIGS: dict[str, dict[str, int]] = {
    "small": dict(layers=3, d_model=256, d_ff=1024, heads=4, vocab=8000),
    "base": dict(layers=6, d_model=512, d_ff=2048, heads=8, vocab=37000),
}
LENGTHS, GROUP, BEAM = [8, 12, 16, 20, 24, 30, 40, 58], 32, 4
ALPHA, OFFSET = 0.6, 50  # of the trained model
PASSES = 3  # over all groups, in one process; the first one warms up
PAD, UNKNOWN, BOS, EOS, ORDINARY = 0, 1, 2, 3, 4  # as nmt.symbols numbers them
Work = Callable[[int], Any]


def groups(config: str) -> list[list[list[int]]]:
    """Sources of ordinary tokens, by Zipf's law."""
    rng, vocab = np.random.default_rng(2), CONFIGS[config]["vocab"]
    return [
        (ORDINARY + (vocab - ORDINARY) ** rng.random((GROUP, length)) - 1).astype(int).clip(ORDINARY, vocab - 1).tolist()
        for length in LENGTHS
    ]


def ours(config: str, precision: str, threads: int) -> Work:
    """This project's decoder, which may not end before the source's length."""
    from nmt import hardware

    device = hardware.prepare(hardware.HardwareConfig(device="cpu", threads=threads))
    import torch

    from nmt.batches import padded
    from nmt.decoder import CachedDecoder
    from nmt.model import ModelConfig, Transformer
    from nmt.products import Decoding
    from nmt.search import DecodeConfig, beam_search

    c = CONFIGS[config]
    d_k = c["d_model"] // c["heads"]
    shape = {key: c[key] for key in ("layers", "d_model", "d_ff", "heads")}
    torch.manual_seed(1)
    model = Transformer(ModelConfig(**shape, d_k=d_k, d_v=d_k, dropout=0.0, positions="sinusoidal"), c["vocab"])
    decoding = Decoding(model, precision, device)  # type: ignore[arg-type]
    settings: dict[str, Any] = dict(beam_size=BEAM, length_penalty=ALPHA, max_length_offset=0, stop="exact", precision=precision)
    sources = groups(config)

    @torch.inference_mode()
    def work(number: int) -> int:
        src = padded(sources[number], lambda longest: -(-longest // 8) * 8)
        decoder, last = CachedDecoder(decoding, [src], BEAM), LENGTHS[number] - 1

        def endless(tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
            log_probs = decoder(tokens, parents)
            if decoder.length <= last:
                log_probs[:, EOS] = -torch.inf
            return log_probs

        found = beam_search(endless, [last] * GROUP, DecodeConfig(**settings))
        return len(found[0][0].ids) + 1

    return work


def ctranslate2_model(config: str, folder: str) -> None:
    """Write a model of random weights."""
    from ctranslate2.specs import Activation, transformer_spec

    c, rng = CONFIGS[config], np.random.default_rng(1)
    width = c["d_model"]
    spec = transformer_spec.TransformerSpec.from_config((c["layers"],) * 2, c["heads"], pre_norm=False, activation=Activation.RELU)

    def linear(layer: Any, out: int, wide: int) -> None:
        layer.weight, layer.bias = (rng.standard_normal((out, wide)) * wide**-0.5).astype("f4"), np.zeros(out, "f4")

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(width, "f4"), np.zeros(width, "f4")

    embedding = (rng.standard_normal((c["vocab"], width)) * width**-0.5).astype("f4")
    for side in (spec.encoder, spec.decoder):
        table = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        table.weight, side.scale_embeddings = embedding, True
        side.position_encodings.encodings = rng.standard_normal((256, width)).astype("f4")
        for layer in side.layer:
            linear(layer.self_attention.linear[0], 3 * width, width)
            linear(layer.self_attention.linear[1], width, width)
            norm(layer.self_attention.layer_norm)
            if side is spec.decoder:
                for place, size in enumerate((width, 2 * width, width)):
                    linear(layer.attention.linear[place], size, width)
                norm(layer.attention.layer_norm)
            linear(layer.ffn.linear_0, c["d_ff"], width)
            linear(layer.ffn.linear_1, width, c["d_ff"])
            norm(layer.ffn.layer_norm)
    spec.decoder.projection.weight, spec.decoder.projection.bias = embedding, np.zeros(c["vocab"], "f4")
    tokens = ["<pad>", "<unk>", "<s>", "</s>", *(str(number) for number in range(ORDINARY, c["vocab"]))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "<s>", "</s>", "<unk>", "<s>"
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    spec.save(folder)


def ctranslate2(config: str, precision: str, threads: int) -> Work:
    """CTranslate2, told to produce as many tokens as the source has."""
    import ctranslate2 as engine

    with tempfile.TemporaryDirectory() as folder:
        ctranslate2_model(config, folder)
        translator = engine.Translator(folder, compute_type=precision, inter_threads=1, intra_threads=threads)
    sources = [[list(map(str, source)) for source in group] for group in groups(config)]

    def work(number: int) -> int:
        length = LENGTHS[number]
        limits = dict(min_decoding_length=length, max_decoding_length=length, max_batch_size=0)
        return len(translator.translate_batch(sources[number], beam_size=BEAM, **limits)[0].hypotheses[0])

    return work


def marian(config: str, precision: str, threads: int) -> Work:
    """Hugging Face's generate."""
    if precision == "int8":
        raise ValueError("int8 is not known")
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(threads)
    c = CONFIGS[config]
    sizes = {f"{side}_{key}": c[name] for side in ("encoder", "decoder") for key, name in (("layers", "layers"), ("ffn_dim", "d_ff"))}
    heads = {f"{side}_attention_heads": c["heads"] for side in ("encoder", "decoder")}
    special = dict(pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS, scale_embedding=True)
    shape = dict(vocab_size=c["vocab"], d_model=c["d_model"], activation_function="relu", max_position_embeddings=512)
    torch.manual_seed(1)
    model = MarianMTModel(MarianConfig(**shape, **sizes, **heads, **special)).eval()
    if precision == "bfloat16":
        model = model.bfloat16()
    model.generation_config.bad_words_ids = None
    sources = [torch.tensor([[*source, EOS] for source in group]) for group in groups(config)]

    @torch.inference_mode()
    def work(number: int) -> int:
        length = LENGTHS[number]
        limits = dict(min_new_tokens=length, max_new_tokens=length)
        found = model.generate(input_ids=sources[number], num_beams=BEAM, do_sample=False, **limits)
        return found.size(1) - 1

    return work


def trained(contender: str, precision: str, options: argparse.Namespace) -> tuple[Work, Callable[[], dict[str, Any]]]:
    """All of the source at once, with a trained model; and what is to be said of the translations."""
    lines = Path(options.source).read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = {}
    if contender == "ctranslate2":
        import ctranslate2 as engine
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(options.model) / "tokenizer.model"))
        translator = engine.Translator(options.exported, compute_type=precision, inter_threads=1, intra_threads=options.threads)

        def work(number: int) -> None:
            sources = pieces.encode(lines, out_type=str)
            results = translator.translate_batch(sources, beam_size=BEAM, length_penalty=ALPHA, max_batch_size=256, max_decoding_length=256)
            found["texts"] = pieces.decode([result.hypotheses[0] for result in results])

    else:
        from nmt import hardware

        device = hardware.prepare(hardware.HardwareConfig(device="cpu", threads=options.threads))
        from nmt.bundle import load_bundle
        from nmt.decoder import CachedDecoder
        from nmt.search import DecodeConfig
        from nmt.translation import Translator, best

        stop, penalty = ("exact", "wu") if contender == "ours" else ("beam_filled", "length")
        settings: dict[str, Any] = dict(beam_size=BEAM, length_penalty=ALPHA, max_length_offset=OFFSET, precision=precision)
        ready = Translator(load_bundle(Path(options.model)), DecodeConfig(**settings, stop=stop, penalty=penalty), device, options.tokens)
        step = CachedDecoder.__call__

        def counted(self: CachedDecoder, tokens: Any, parents: Any) -> Any:
            found["steps"] += 1
            found["rows"] += len(tokens)
            return step(self, tokens, parents)

        CachedDecoder.__call__ = counted  # type: ignore[method-assign]

        def work(number: int) -> None:
            found.update(steps=0, rows=0)
            found["texts"] = list(map(best, ready.translate(lines)))

    return work, lambda: found


def work(contender: str, config: str, precision: str, options: argparse.Namespace) -> None:
    """Print the seconds of each group, the fastest of PASSES, as JSON; or why the contender cannot do it."""
    facts: Callable[[], dict[str, Any]] = dict
    try:
        if options.model:
            step, facts = trained(contender, precision, options)
        else:
            step = {"ours": ours, "ctranslate2": ctranslate2, "marian": marian}[contender](config, precision, options.threads)
    except (ValueError, ImportError) as error:
        print(json.dumps({"cannot": str(error).splitlines()[0]}))
        return
    lengths = [None] if options.model else LENGTHS
    best = [float("inf")] * len(lengths)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    for _ in range(PASSES):
        for number, length in enumerate(lengths):
            began = clock()
            made = step(number)
            best[number] = min(best[number], clock() - began)
            assert made == length, f"{contender} made {made} tokens, not {length}"
    print(json.dumps({"seconds": best, **facts()}))


def main() -> None:
    """Run the contenders in turn and print what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", default="small,base")
    parser.add_argument("--precisions", default="float32,bfloat16,int8")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with ctranslate2, or torch and transformers, or all of them")
    parser.add_argument("--model", help="the folder that the stage `average` wrote")
    parser.add_argument("--exported", help="the same model, as CTranslate2 reads it")
    parser.add_argument("--source", help="lines to translate with --model")
    parser.add_argument("--reference", help="their references")
    parser.add_argument("--tokens", type=int, default=6000, help="hardware.decode_tokens, for --model")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work, options)
        return
    if options.model:
        options.configs, contenders = "trained", {"ours": sys.executable, "ours, its rules": sys.executable}
        if options.peers and options.exported:
            contenders["ctranslate2"] = options.peers
        sentences = len(Path(options.source).read_text(encoding="utf-8").splitlines())
    else:
        contenders = {"ours": sys.executable} | ({"ctranslate2": options.peers, "marian": options.peers} if options.peers else {})
        sentences = GROUP * len(LENGTHS)
    ratios = []
    print(f"{options.threads} threads, beam {BEAM}, {sentences} sentences, {options.rounds} rounds of {PASSES} passes")
    for config in options.configs.split(","):
        for precision in options.precisions.split(","):
            best: dict[str, Any] = {}
            last: dict[str, dict[str, Any]] = {}
            for _ in range(options.rounds):
                for contender, python in contenders.items():
                    command = [python, __file__, "--work", contender, config, precision, *sys.argv[1:]]
                    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
                    if "cannot" in found:
                        last[contender] = found
                        continue
                    best[contender] = np.minimum(best.get(contender, np.inf), found["seconds"])
                    last[contender] = found
            rates = {contender: sentences / seconds.sum() for contender, seconds in best.items()}
            for contender, found in last.items():
                told = f"cannot: {found['cannot']}" if "cannot" in found else f"{rates[contender]:8.1f} sentences/s"
                print(f"{config:7} {precision:8} {contender:16} {told}{_quality(found, last, options)}", flush=True)
            ratios += [
                f"{config:7} {precision:8} ours / {contender}: {rates['ours'] / rate:.2f}"
                for contender, rate in rates.items()
                if contender != "ours"
            ]
    print("\n".join(ratios))


def _quality(found: dict[str, Any], all_found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """BLEU of a trained model's translations, how many are equal to CTranslate2's, and the steps they took."""
    if "texts" not in found:
        return ""
    from sacrebleu.metrics import BLEU

    references = Path(options.reference).read_text(encoding="utf-8").splitlines()
    told = f", BLEU {BLEU().corpus_score(found['texts'], [references]).score:.2f}"
    peer = all_found.get("ctranslate2", {}).get("texts")
    if peer and peer is not found["texts"]:
        told += f", {sum(a == b for a, b in zip(found['texts'], peer, strict=True)) / len(peer):.2%} of the lines as CTranslate2"
    return told + (f", {found['steps']:,} steps of {found['rows']:,} rows" if "steps" in found else "")


if __name__ == "__main__":
    main()
