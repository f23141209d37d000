"""One side of a text of which a single file holds both: a column of a table, or a language of a translation memory.

    talks.tsv:1       the first column of a tab-separated table without quoting        one<TAB>eins
    memory.tmx:en     the segments in English of a TMX file (TMX 1.4b); of en-GB too, unless that one is asked for

Every row and every translation unit gives a line on either side. A unit without the language gives a blank line, which cleaning drops
and counts, so that both sides stay in step. Files may be compressed, talks.tsv.gz:1.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from nmt.errors import UserError
from nmt.lines import decompressed, read_lines
from nmt.pairs import Counted

PLACE = re.compile(r"(?P<path>.+\.(?P<kind>tsv|tmx)(\.gz|\.xz|\.bz2|\.zst)?)(:(?P<part>[^:/]+))?")
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements of a segment that hold codes of another format, not text


def file_of(name: str) -> Path:
    """The file that the name of a side is about."""
    match = PLACE.fullmatch(name)
    return Path(match["path"] if match else name)


def check_name(name: str) -> str:
    """`name`, if it is a plain file or says which part of a table or memory it means. Raises ValueError."""
    match = PLACE.fullmatch(name)
    if match and match["part"] is None:
        what, example = ("column", 1) if match["kind"] == "tsv" else ("language", "en")
        raise ValueError(f"{name} holds both sides: name the {what}, as in {name}:{example}")
    if match and match["kind"] == "tsv" and not re.fullmatch("[1-9][0-9]*", match["part"]):
        raise ValueError(f"{name}: columns are numbers, from 1 on")
    return name


def side_lines(name: str, counted: Counted | None = None) -> Iterator[str]:
    """The lines of a side. Raises UserError as `read_lines` does, and for a row that is too short or a file that is no XML."""
    match = PLACE.fullmatch(name)
    if match is None:
        yield from read_lines(Path(name), counted)
    elif match["kind"] == "tsv":
        column = int(match["part"])
        for number, line in enumerate(read_lines(Path(match["path"]), counted), start=1):
            fields = line.split("\t")
            if len(fields) < column:
                raise UserError(f"{match['path']}, line {number}: column {column} is asked for, but there are {len(fields)}")
            yield fields[column - 1]
    else:
        yield from _segments(match["path"], match["part"], counted or Counted())


def _segments(path: str, language: str, counted: Counted) -> Iterator[str]:
    try:
        with open(path, "rb") as file, decompressed(file, path) as stream:
            events = ElementTree.iterparse(stream, events=("start", "end"))
            top: ElementTree.Element | None = None
            for event, element in events:
                if event == "start" and element.tag == "body":
                    top = element
                elif event == "end" and element.tag == "tu" and top is not None:
                    line, breaks = re.subn(r"\s*\n\s*", " ", _segment(element, language))
                    counted.line_breaks += breaks
                    yield line
                    top.clear()  # what was read is let go of, so that memory does not grow
    except ElementTree.ParseError as error:
        raise UserError(f"{path} is not a TMX file, or damaged: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _segment(unit: ElementTree.Element, language: str) -> str:
    """The segment of a unit in `language`, whose case does not matter, else that of the first of its varieties."""
    found = {(variant.get(LANGUAGE) or variant.get("lang") or "").lower(): variant for variant in reversed(unit.findall("tuv"))}
    wanted = language.lower()
    varieties = [code for code in reversed(found) if code == wanted or code.startswith((f"{wanted}-", f"{wanted}_"))]
    variant = found[min(varieties, key=lambda code: code != wanted)] if varieties else None
    segment = None if variant is None else variant.find("seg")
    return "" if segment is None else _text(segment)


def _text(element: ElementTree.Element) -> str:
    inner = ("" if child.tag in CODES else _text(child) for child in element)
    return (element.text or "") + "".join(text + (child.tail or "") for text, child in zip(inner, element, strict=True))
