"""One sentence on whether the difference between models is noise, from the document of pipelines/comparison.py."""

from typing import Any

from pipelines import significance

VALID = "valid"  # which decides nothing: choices were made on it


def verdict(document: dict[str, Any]) -> str:
    """Whether the differences are noise: BLEU of the first test set, a sentence for each side beyond the first."""
    name = next(name for name in document["sets"] if name != VALID)
    pairs = document["sets"][name]["pairs"]
    level = significance.LEVEL / len(pairs)
    sentences = [_sentence(document, name, pair, level) for pair in pairs]
    if len(pairs) > 1:
        sentences.append(f"With {len(pairs)} comparisons the level of each is {level:.3f}.")
    return " ".join(sentences)


def _sentence(document: dict[str, Any], name: str, pair: dict[str, Any], level: float) -> str:
    one, other = (document["sides"][side]["name"] for side in (0, pair["side"]))
    if pair["seeds"]:
        return _of_seeds(f"{one} to {other}: BLEU of {name}", significance.Seeds(**pair["seeds"]), level)
    found = significance.Paired(**pair["tests"]["bleu"])
    told = f"{one} to {other}: BLEU of {name} {found.baseline:.2f} to {found.score:.2f} ({found.difference:+.2f})"
    if pair["same_lines"] == 1:
        return f"{told}: no difference, all translations are the same (p = 1)."
    values = f"p = {found.bootstrap_p:.4f} by paired bootstrap, {found.randomization_p:.4f} by approximate randomization"
    seed = "one training a side, so what another seed would give is not known"
    decided = found.decision(level)
    if decided is None:
        return f"{told} is undecided: {values}; {seed}."
    return f"{told} {'is more than chance' if decided else 'cannot be told from noise'} over the choice of sentences: {values}; {seed}."


def _of_seeds(head: str, found: significance.Seeds, level: float) -> str:
    sides = [
        f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "") + f" ({count} {'seed' if count == 1 else 'seeds'})"
        for mean, deviation, count in zip(found.means, found.deviations, found.counts, strict=True)
    ]
    told = f"{head} {sides[0]} to {sides[1]}, {found.difference:+.2f}"
    if found.p is None:
        return (
            f"{told}: too few seeds to tell, at least 2 a side give a deviation and {significance.ENOUGH_SEEDS} one that means something."
        )
    values = (
        f"p = {found.p:.4f} with the seeds and the choice of sentences both taken for chance, standard error {found.standard_error:.2f}"
    )
    few = "" if found.enough else f"; {min(found.counts)} seeds are few, take {significance.ENOUGH_SEEDS} or more"
    return f"{told} {'is more than chance' if found.p < level else 'cannot be told from noise'}: {values}{few}."
