"""Tokens of the paper's BLEU, by the examples of tokenizer.perl and of tensor2tensor's evaluation."""

import pytest

from nmt.moses import moses_name, moses_tokens, plain_quotes, split_compounds


def test_tokens_are_those_of_the_moses_tokenizer() -> None:
    lines = ["Das kostet 3,50 Euro, z. B. hier.", "It's a dog-house.", "", "„Ja“, sagte er (laut)."]
    assert moses_tokens(lines[:1] + lines[2:], "de") == ["Das kostet 3,50 Euro , z. B. hier .", "", "„ Ja “ , sagte er ( laut ) ."]
    assert moses_tokens(lines[1:2], "en") == ["It 's a dog-house ."]


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("der 28-jährige Koch", "der 28 ##AT##-##AT## jährige Koch"),
        ("a - b -c d-", "a - b -c d-"),
        ("Mund-zu-Mund", "Mund ##AT##-##AT## zu ##AT##-##AT## Mund"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # as Perl's s///g does: the b is used up
    ],
)
def test_compounds_are_split_as_the_expression_of_the_papers_does(line: str, split: str) -> None:
    assert split_compounds(line) == split


def test_quotes_are_made_plain_and_nothing_else() -> None:
    assert plain_quotes("„Ja“, “no” »si« ‚so‘ – it’s … ok") == '"Ja", "no" "si" \'so\' – it\'s … ok'


def test_the_name_tells_language_and_version() -> None:
    assert moses_name("de").startswith("moses-de-sacremoses-0.2")
