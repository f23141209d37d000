import pytest

from nmt.config import parse
from nmt.errors import UserError
from nmt.languages import Languages


def test_the_two_codes_must_differ() -> None:
    with pytest.raises(UserError, match="corpora.mine.languages .*src and tgt are both en"):
        parse(Languages, {"src": "en", "tgt": "en"}, "corpora.mine.languages")


@pytest.mark.parametrize("code", ["", "../en", "e n", "en/", "no"])
def test_codes_are_names_of_files_without_paths(code: str) -> None:
    if code == "no":
        assert parse(Languages, {"src": code, "tgt": "pt-BR"}, "l").src == "no"
    else:
        with pytest.raises(UserError, match="l.src"):
            parse(Languages, {"src": code, "tgt": "pt-BR"}, "l")
