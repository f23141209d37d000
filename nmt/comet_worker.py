"""COMET's side: started by nmt/comet.py in the interpreter where unbabel-comet is installed. Needs nothing of this project, and Python 3.8.

python -I comet_worker.py MODEL PRECISION DEVICE, then a line of JSON each way:

out  {"ready": {"version": "2.2.7", "sha256": "2760…"}}                     the model is loaded; the hash is its checkpoint's
in   [{"src": "Turn on", "mt": "Schalte ein", "ref": "Schalte an"}, …]      a set
out  {"done": 16}                                                           lines of a batch
out  {"scores": [0.8534, …]}                                                of every line, in order
out  {"error": "…"}                                                         what went wrong; nothing follows
"""

import hashlib
import json
import logging
import os
import signal
import sys
import warnings
from typing import Any, TextIO

BATCH = 16  # lines, as `comet-score` takes
PR_SET_PDEATHSIG = 1  # of Linux' prctl


def main(model: str, precision: str, device: str) -> None:
    """Load the `model`, a checkpoint's path or a name on the Hugging Face hub, and answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what the package prints must not stand among the answers
    warnings.filterwarnings("ignore")
    doing = "unbabel-comet does not start"
    try:
        from importlib import metadata

        import comet
        import torch

        for name in ("comet", "pytorch_lightning", "lightning.pytorch", "lightning_utilities"):
            logging.getLogger(name).setLevel(logging.ERROR)
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("the device is to be cuda, but its PyTorch sees no GPU")
        gpus = 0 if device == "cpu" else min(1, torch.cuda.device_count())
        doing = f"there is no model {model}"
        path = model if model.endswith(".ckpt") else comet.download_model(model)
        doing = f"the model {model} cannot be loaded"
        loaded = comet.load_from_checkpoint(path).eval()
        if precision == "float16":
            loaded.half()
        loaded.on_predict_batch_end = lambda outputs, *_: _tell(answers, "done", len(outputs["scores"]))  # a hook of Lightning's
        _tell(answers, "ready", {"version": metadata.version("unbabel-comet"), "sha256": _sha256(path)})
        doing = "it failed while it scored"
        for line in sys.stdin:
            found = loaded.predict(json.loads(line), batch_size=BATCH, gpus=gpus, progress_bar=False)
            _tell(answers, "scores", [float(score) for score in found.scores])
    except Exception as error:
        _tell(answers, "error", f"{doing} ({_words(error)})")


def _tell(answers: TextIO, kind: str, value: Any) -> None:
    answers.write(json.dumps({kind: value}) + "\n")
    answers.flush()


def _words(error: BaseException) -> str:
    """What happened in one line: the error, and where it hides another one, as `download_model` does, the first of them too."""
    first = error
    while first.__context__ is not None:
        first = first.__context__
    told = [f"{type(one).__name__}: {' '.join(str(one).split())}" for one in ([error] if first is error else [error, first])]
    return ", after ".join(told)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _end_with_parent() -> None:
    """Have Linux kill this process when its parent ends, however it does, so that no scoring goes on unseen."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


if __name__ == "__main__":
    main(*sys.argv[1:])
