"""Parallel text from documentation: the same page in two languages, cut into blocks that are paired by their place.

    html, mallard   blocks by element           <p>Save the file.</p> <li>Quit.</li>    ->  (p, "Save the file."), (li, "Quit.")
    man             blocks by macro             .PP  Save the file.                     ->  (PP, "Save the file.")
    libreoffice     elements by their id        <p id="par_id7">Save the file.</p>      ->  par_id7: "Save the file."
    catalog         messages, a GNU .mo file    menu|save\\4_Save  ->  Sichern
    ding            example sentences           Ja. | Nein. :: Yes. | No.

Blocks are paired only where both pages (of manual pages: both sections) have the same elements in the same order, so a page that was
translated from another version gives no pair instead of wrong ones.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

from nmt.lines import join_whitespace

Block = tuple[str, str]  # name of the element or macro, text
HTML_BLOCKS = {
    "p",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "li",
    "dt",
    "dd",
    "td",
    "th",
    "caption",
    "title",
    "pre",
    "div",
    "table",
    "ul",
    "ol",
    "dl",
}
UNSEEN = {"script", "style"}
CODE = {"pre", "EX", "nf", "TS"}
MALLARD = {"title", "p", "desc"}
UNIT = re.compile(r"(par|hd)_id\w+")
SENTENCE = re.compile(r".*[.!?]$")


def html_pairs(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of two pages of HTML."""
    yield from _paired(_html_blocks(src), _html_blocks(tgt))


def mallard_pairs(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of two pages of GNOME's help, which are XML."""

    def blocks(page: str) -> list[Block]:
        elements = ((element.tag.rpartition("}")[2], element) for element in ElementTree.fromstring(page).iter())
        return [(name, join_whitespace("".join(element.itertext()))) for name, element in elements if name in MALLARD]

    yield from _paired(blocks(src), blocks(tgt))


def libreoffice_pairs(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of two pages of LibreOffice's help, whose paragraphs and headings have ids; of one id the n-th ones are paired."""

    def units(page: str) -> dict[tuple[str, int], str]:
        seen: Counter[str] = Counter()
        found = {}
        parser = _Blocks()
        parser.feed(page)
        for name, text, attributes in parser.blocks:
            unit = attributes.get("id") or ""
            if UNIT.fullmatch(unit) and not (attributes.get("class") or "").startswith("switch") and name != "pre":
                found[unit, seen[unit]] = join_whitespace(text)
                seen[unit] += 1
        return found

    translations = units(tgt)
    yield from ((text, translations[key]) for key, text in units(src).items() if text and translations.get(key))


def man_pairs(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of two manual pages, section by section. A translation may end with a section more, about its translators."""
    sections = [list(_sections(page)) for page in (src, tgt)]
    levels = [[blocks[0][0] for blocks in page] for page in sections]
    if levels[0] == levels[1][: len(levels[0])] and len(levels[1]) <= len(levels[0]) + 1:
        for pair in zip(*sections, strict=False):
            yield from _paired(*pair)


def catalog_pairs(data: bytes) -> Iterator[tuple[str, str, str]]:
    """Context, message and translation of a catalog of LibreOffice, without marks of keys to press. Plural forms are left out."""
    magic, _, count, originals, translations = struct.unpack_from("<5I", data)
    if magic != 0x950412DE:
        raise ValueError("it is no catalog of messages (.mo)")
    for number in range(count):
        original, translation = (
            data[place : place + length].decode("utf-8")
            for length, place in (struct.unpack_from("<2I", data, table + 8 * number) for table in (originals, translations))
        )
        context, separator, message = original.partition("\4")
        if separator and "\0" not in original:
            yield context, _without_keys(message), _without_keys(translation)


def ding_pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """Entry, German and English of the example sentences of the dictionary Ding: what ends like a sentence on both sides."""
    for line in text.split("\n"):
        german, separator, english = line.partition(" :: ")
        sides = [side.split(" | ") for side in (german, english)]
        if line.startswith("#") or not separator or len(sides[0]) != len(sides[1]):
            continue
        for pair in zip(*sides, strict=True):
            alternatives = [[_without_notes(text) for text in side.split("; ")] for side in pair]
            if len(alternatives[0]) == len(alternatives[1]) or 1 in map(len, alternatives):
                for one, other in zip(*alternatives, strict=False):
                    if SENTENCE.match(one) and SENTENCE.match(other):
                        yield german, one, other


def _paired(src: list[Block], tgt: list[Block]) -> Iterator[tuple[str, str]]:
    """The texts of two lists of blocks, if they have the same names. Code and what is blank on a side is left out."""
    if [name for name, _ in src] == [name for name, _ in tgt]:
        for (name, text), (_, translation) in zip(src, tgt, strict=True):
            if text and translation and name not in CODE:
                yield text, translation


def _html_blocks(page: str) -> list[Block]:
    parser = _Blocks()
    parser.feed(page)
    return [(name, join_whitespace(text)) for name, text, _ in parser.blocks if text.strip()]


class _Blocks(HTMLParser):
    """Collects the block elements of a page in the order in which they begin: name, own text, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[str, str, dict[str, str | None]]] = []
        self.open: list[int] = []  # blocks that have begun and not ended
        self.unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            self.unseen += 1
        elif tag in HTML_BLOCKS:
            self.open.append(len(self.blocks))
            self.blocks.append((tag, "", dict(attrs)))
        elif tag == "br":
            self.handle_data(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in UNSEEN:
            self.unseen = max(0, self.unseen - 1)
        elif any(self.blocks[number][0] == tag for number in self.open):
            while self.blocks[self.open.pop()][0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and not self.unseen:
            name, text, attributes = self.blocks[self.open[-1]]
            self.blocks[self.open[-1]] = (name, text + data, attributes)


# Macros that set their arguments in other fonts: with spaces between them, or without.
SPACED, JOINED = {"B", "I", "SM", "SB"}, {"BR", "BI", "IR", "IB", "RB", "RI"}
VERBATIM = {"EX": "EE", "nf": "fi", "TS": "TE"}
ESCAPES = {
    "\\-": "-",
    "\\(aq": "'",
    "\\(dq": '"',
    "\\(em": "—",
    "\\(en": "–",
    "\\(bu": "•",
    "\\(co": "©",
    "\\(ha": "^",
    "\\(ti": "~",
    "\\(ga": "`",
    "\\(lq": "“",
    "\\(rq": "”",
    "\\(oq": "‘",
    "\\(cq": "’",
    "\\(rs": "\\",
    "\\[aq]": "'",
    "\\[rg]": "®",
    "\\e": "\\",
    "\\&": "",
    "\\/": "",
    "\\,": "",
    "\\:": "",
    "\\%": "",
    "\\|": "",
    "\\^": "",
    "\\ ": " ",
    "\\~": " ",
    "\\0": " ",
    "\\c": "",
    "\\'": "'",
    "\\`": "`",
}
ESCAPE = re.compile("|".join(map(re.escape, sorted(ESCAPES, key=len, reverse=True))))


def _sections(page: str) -> Iterator[list[Block]]:
    """The blocks of each section of a manual page; the first block is its heading."""
    section: list[Block] = [("TH", "")]
    name, lines, verbatim, term = "", list[str](), "", False

    def finished() -> list[Block]:
        return [(name, _plain(" ".join(lines)))] if lines and name else []

    for line in page.split("\n"):
        found = re.match(r"[.'][ \t]*([A-Za-z]+)[ \t]*(.*)", line)
        macro, rest = (found[1], found[2]) if found else ("", line)
        if verbatim:
            verbatim = "" if macro == verbatim else verbatim
        elif line.startswith((".\\", "'\\", ".", "'")) and not found:
            continue
        elif macro in VERBATIM:
            section += finished()
            section.append((macro, ""))
            name, lines, verbatim = "after", [], VERBATIM[macro]
        elif macro in ("SH", "SS"):
            section += finished()
            yield section
            section, name, lines, term = [(macro, _plain(" ".join(_arguments(rest))))], "first", [], False
        elif not macro or macro in SPACED | JOINED:
            text = rest if not macro else (" " if macro in SPACED else "").join(_arguments(rest))
            lines += [text] if text else []
            if term and text:  # what follows .TP is its term, up to the end of the line
                section += finished()
                name, lines, term = "TP body", [], False
        else:
            section += finished()
            if macro == "IP":
                section.append(("IP term", _plain(" ".join(_arguments(rest)[:1]))))
            name, lines, term = macro, [], macro in ("TP", "TQ")
            section.append((macro, ""))
    section += finished()
    yield section


def _arguments(rest: str) -> list[str]:
    """The arguments of a macro: words, or what stands in double quotes."""
    return [quoted or plain for quoted, plain in re.findall(r'"((?:[^"]|"")*)"|((?:\\.|[^\s"])+)', rest)]


def _plain(text: str) -> str:
    """Text without the escapes of troff; nothing if one is left that we do not know."""
    text = re.sub(r'\\".*', "", text)
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d+|\\m\[[^]]*\]", "", text)
    text = re.sub(r"\\\[u([0-9A-F]{4,6})\]", lambda found: chr(int(found[1], 16)), text)
    rest = ESCAPE.sub("", text)
    return "" if "\\" in rest else join_whitespace(ESCAPE.sub(lambda found: ESCAPES[found[0]], text))


def _without_keys(message: str) -> str:
    """A message without `~` or `_` before the letter that opens a menu."""
    one = message.count("_") == 1
    return (re.sub(r"_(?=\w)", "", message) if one else message).replace("~", "")


def _without_notes(text: str) -> str:
    """A sentence of the dictionary without grammar in braces, fields in brackets and remarks in round or angle ones."""
    return join_whitespace(re.sub(r"\{[^}]*\}|\[[^]]*\]|<[^>]*>|\([^)]*\)", "", text))
