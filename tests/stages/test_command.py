"""What a stage says and how it ends when something stops it, as real processes."""

import subprocess
import sys
import textwrap

import pytest

from tests.copy_task import PROJECT


def ended(body: str) -> tuple[int, str]:
    """Exit code and standard error of a stage whose main does `body`."""
    head = "from nmt.errors import UserError\nfrom stages.command import run\n"
    script = f"{head}def main() -> None:\n{textwrap.indent(body, '    ')}\nrun(main)"
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise UserError('x.en is empty')", 2, "error: x.en is empty\n"),
        ("raise KeyboardInterrupt", 130, "stopped: the same command does this stage again\n"),
        ("raise OSError(28, 'No space left on device')", 2, "error: a file could not be written (No space left on device)"),
        ("import torch; torch.empty(1 << 60)", 2, "error: there is not enough memory"),
        ("raise MemoryError('x')", 2, "error: there is not enough memory"),
    ],
)
def test_what_the_user_can_put_right_is_one_sentence(body: str, code: int, said: str) -> None:
    returncode, stderr = ended(body)
    assert returncode == code and stderr.startswith(said)
    assert stderr.count("\n") == 1 and "Traceback" not in stderr


@pytest.mark.parametrize("body", ["raise RuntimeError('ours')", "raise OSError(5, 'Input/output error')", "raise AssertionError"])
def test_our_own_mistakes_keep_their_traceback(body: str) -> None:
    returncode, stderr = ended(body)
    assert returncode == 1 and "Traceback (most recent call last)" in stderr
