"""Pages as they stand in Debian's packages, cut by hand to what matters."""

import struct

import pytest

from nmt.manuals import catalog_pairs, ding_pairs, html_pairs, libreoffice_pairs, mallard_pairs, man_pairs


def test_html_is_paired_block_by_block_with_the_marks_inside_gone() -> None:
    def page(title: str, first: str, item: str, cell: str) -> str:
        return f"""<!DOCTYPE html><html><head><title>{title}</title><style>p {{}}</style></head><body><div class="x"><p>{first}</p>
            <script>if (a < b) "<p>"</script><ul><li>{item}<p>inner &amp; <b>bold</b></p></li></ul><pre>code</pre><img src="x"/>
            <table><tr><td>{cell}</td><td> </td></tr></table></div></body></html>"""

    found = html_pairs(page("A", "One <em>two</em>\n three&nbsp;!", "i", "c"), page("B", "Eins <i>zwei</i><br/>drei", "j", "d"))
    inner = ("inner & bold", "inner & bold")
    assert list(found) == [("A", "B"), ("One two three !", "Eins zwei drei"), ("i", "j"), inner, ("c", "d")]


def test_pages_with_other_blocks_give_nothing() -> None:
    assert list(html_pairs("<p>a</p><p>b</p>", "<p>a</p><h1>b</h1>")) == []
    assert list(html_pairs("<p>a</p><p>b</p>", "<p>a</p>")) == []


def test_gnomes_help_is_read_as_xml() -> None:
    page = '<page xmlns="http://projectmallard.org/1.0/"><info><desc>{}</desc></info><title>{}</title><p>{} <gui>{}</gui></p></page>'
    found = mallard_pairs(page.format("a", "b", "c", "d"), page.format("A", "B", "C", "D"))
    assert list(found) == [("a", "A"), ("b", "B"), ("c d", "C D")]


def test_libreoffices_units_are_joined_on_their_ids_and_those_for_one_system_left_out() -> None:
    src = '<h1 id="hd_id1">Sort</h1><p id="par_id2">first</p><p id="par_id2">second</p><p id="par_id4" class="switch">x</p><p>no</p>'
    tgt = '<p id="par_id2">erstens</p><p id="par_id2" class="a">zweitens</p><h1 id="hd_id1">Sor&shy;tieren</h1><p id="par_id4">y</p>'
    assert list(libreoffice_pairs(src, tgt)) == [("Sort", "Sor\u00adtieren"), ("first", "erstens"), ("second", "zweitens")]


MAN = r""".\" a comment
.TH signal 7 2023-02-05 "Linux"
.SH NAME
signal \- overview of \(aqsignals\(aq
.SH DESCRIPTION
The entries
.\" another
in the
.IR "Action column" ,
see
.BR core (5).
.TP
.B Term
Default action
is \fIto end\fP.
.IP \(bu 3
First
.EX
int main(void);
.EE
.PP
Odd \*(xx escape
"""


def test_manual_pages_are_paired_by_their_macros() -> None:
    found = man_pairs(
        MAN, MAN.replace("The entries", "Die Einträge").replace("NAME", "BEZEICHNUNG").replace('.IR "Action column" ,', "\\fISpalte\\fP,")
    )
    assert list(found) == [
        ("NAME", "BEZEICHNUNG"),
        ("signal - overview of 'signals'", "signal - overview of 'signals'"),
        ("DESCRIPTION", "DESCRIPTION"),
        ("The entries in the Action column, see core(5).", "Die Einträge in the Spalte, see core(5)."),
        ("Term", "Term"),
        ("Default action is to end.", "Default action is to end."),
        ("•", "•"),
        ("First", "First"),
    ]


def test_a_section_that_differs_gives_nothing_and_the_others_stay() -> None:
    other = MAN.replace(".PP\nOdd", ".PP\nmore\n.PP\nOdd")
    assert [src for src, _ in man_pairs(MAN, other)] == ["NAME", "signal - overview of 'signals'"]
    longer = MAN + ".SH TRANSLATION\nby people\n"
    assert list(man_pairs(MAN, longer)) == list(man_pairs(MAN, MAN))
    assert list(man_pairs(longer, MAN)) == [] and list(man_pairs(MAN, longer + ".SH MORE\nx\n")) == []


def catalog(messages: list[tuple[str, str]]) -> bytes:
    """A .mo file, as gettext's manual describes it."""
    texts = [[text.encode() for text in column] for column in zip(*messages, strict=True)]
    place = 28 + 16 * len(messages)
    tables, data = b"", b""
    for column in texts:
        for text in column:
            tables += struct.pack("<2I", len(text), place + len(data))
            data += text + b"\0"
    return struct.pack("<7I", 0x950412DE, 0, len(messages), 28, 28 + 8 * len(messages), 0, 0) + tables + data


def test_a_catalog_gives_messages_without_the_marks_of_keys() -> None:
    messages = [
        ("", "Content-Type: text/plain"),
        ("menu|save\4_Save", "S_ichern"),
        ("STR_A\4~Open", "Ö~ffnen"),
        ("STR_B\4one\0many", "eins\0viele"),
        ("STR_C\4a_b_c", "a_b_c"),
    ]
    expected = [("menu|save", "Save", "Sichern"), ("STR_A", "Open", "Öffnen"), ("STR_C", "a_b_c", "a_b_c")]
    assert list(catalog_pairs(catalog(messages))) == expected
    with pytest.raises(ValueError, match="no catalog"):
        list(catalog_pairs(b"x" * 40))


def test_the_dictionary_gives_its_sentences() -> None:
    text = (
        "# comment :: no\n"
        "Haus {n} | Häuser {pl} | Das Haus ist alt. :: house | houses | The house is old.\n"
        "ja | Komm (her)!; Los! :: yes | Come (here)!; Go [coll.]!\n"
        "a | Eins. :: b\n"
        "Nur eine. :: One.; The other.\n"
    )
    assert [pair for _, *pair in ding_pairs(text)] == [
        ["Das Haus ist alt.", "The house is old."],
        ["Komm !", "Come !"],
        ["Los!", "Go !"],
        ["Nur eine.", "One."],
    ]
    assert [entry.split()[0] for entry, *_ in ding_pairs(text)] == ["Haus", "ja", "ja", "Nur"]
