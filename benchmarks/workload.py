"""What all contenders of a benchmark work on: sizes of models and synthetic pairs. Imports nothing that a contender may lack."""

import numpy as np

Sizes = dict[str, int]
Pairs = list[tuple[list[int], list[int]]]

CONFIGS: dict[str, Sizes] = {
    "small": dict(layers=3, d_model=256, d_ff=1024, heads=4, vocab=8000, batches=16),
    "base": dict(layers=6, d_model=512, d_ff=2048, heads=8, vocab=37000, batches=6),
    "big": dict(layers=6, d_model=1024, d_ff=4096, heads=16, vocab=37000, batches=6),
}
DROPOUT, SMOOTHING, LONGEST = 0.1, 0.1, 200
PAD, BOS, EOS, ORDINARY = 0, 2, 3, 4  # as nmt.symbols numbers them


def pairs_of(config: str, tokens: int) -> list[Pairs]:
    """Batches of about `tokens` target tokens, short and long sentences in turn; each pair without special tokens."""
    rng, vocab, count = np.random.default_rng(1), CONFIGS[config]["vocab"], CONFIGS[config]["batches"]
    src = rng.lognormal(np.log(26) - 0.18, 0.6, max(20_000, count * tokens // 10))
    tgt = src * rng.lognormal(0.0, 0.15, len(src))
    lengths = np.stack([src, tgt]).round().clip(3, 120).astype(int).T
    lengths = lengths[np.lexsort((lengths[:, 0], lengths.max(1)))]
    starts = np.flatnonzero(np.diff(np.cumsum(lengths.max(1) + 1) // tokens, prepend=-1))
    chosen = np.linspace(0, len(starts) - 2, count + 2).round().astype(int)[1:-1]

    def words(length: int) -> list[int]:
        return (ORDINARY + (vocab - ORDINARY) ** rng.random(length) - 1).astype(int).clip(ORDINARY, vocab - 1).tolist()  # type: ignore[no-any-return]

    return [[(words(s), words(t)) for s, t in lengths[starts[i] : starts[i + 1]]] for i in chosen]
