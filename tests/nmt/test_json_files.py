"""nmt.json_files: whatever became of a file, one sentence names it and the way out."""

from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.json_files import read_object


def test_a_whole_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_bytes('{"a": {"ä": 1}, "b": null}'.encode())
    assert read_object(tmp_path / "facts.json", "a", "b") == {"a": {"ä": 1}, "b": None}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, " cannot be read: No such file or directory; "),
        (b"", " is damaged, for it is no JSON from line 1, column 1 on: "),
        (b'{"a": 1,\n "b": ', " is damaged, for it is no JSON from line 2, column 7 on: "),
        (b'{"a": "\xff"}', " is damaged, for it is no JSON: "),
        (b"[" * 100_000, " is damaged, for it is no JSON: "),
        (b"[1]", " is damaged, for it holds no JSON object: "),
        (b'{"a": 1}', " is damaged, for it has no b, c: "),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_object(path, "a", "b", "c")
    assert str(raised.value) == f"{path}{said}copy it anew, or have DVC bring it back with `dvc checkout`"
