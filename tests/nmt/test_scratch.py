"""nmt.scratch: work is found again by what decides it, and held by one process."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.scratch import fingerprint, held, link_or_copy
from tests.copy_task import other_file_system, start

FACTS: dict[str, Any] = {"seed": 1, "model": {"layers": 2, "dropout": 0.1}, "data": {"a": "5f"}}


def test_equal_facts_have_one_name_and_others_another() -> None:
    reordered = {"data": {"a": "5f"}, "model": {"dropout": 0.1, "layers": 2}, "seed": 1}
    assert fingerprint(FACTS) == fingerprint(reordered)
    others = [
        {**FACTS, "seed": 2},
        {**FACTS, "model": {"layers": 2, "dropout": 0.2}},
        {**FACTS, "data": {"b": "5f"}},
        {**FACTS, "more": None},
    ]
    names = [fingerprint(facts) for facts in (FACTS, *others)]
    assert len(set(names)) == len(names)
    assert all(name.isalnum() and len(name) == 16 for name in names)


def test_a_held_folder_is_there_and_names_its_holder(tmp_path: Path) -> None:
    with held(tmp_path / "new" / "work") as folder:
        assert folder == tmp_path / "new" / "work" and (folder / "lock").read_text().startswith(f"process {os.getpid()}, since 20")


def test_a_second_holder_is_refused_by_the_name_of_the_first_and_takes_over_after_it(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(UserError, match=rf"^{tmp_path} is in use by process {os.getpid()}, since .*: wait"), held(tmp_path):
        raise AssertionError
    with pytest.raises(ZeroDivisionError), held(tmp_path):
        raise ZeroDivisionError
    with held(tmp_path):
        pass


HOLDER = """\
import time
from pathlib import Path
from nmt.scratch import held

with held(Path("work")):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_killed_holder_leaves_the_folder_free(tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text(HOLDER)
    process = start(tmp_path, "holder")
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"in use by process {process.pid}"), held(tmp_path / "work"):
        raise AssertionError
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with held(tmp_path / "work"):
        assert (tmp_path / "work" / "lock").read_text().startswith(f"process {os.getpid()},")


def test_within_a_file_system_a_file_is_linked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_across_file_systems_a_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    with other_file_system(tmp_path) as other:
        link_or_copy(tmp_path / "a", other / "b")
        assert (other / "b").read_bytes() == b"weights" and not (tmp_path / "a").samefile(other / "b")
