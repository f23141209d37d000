"""Stands for the package `comet` of unbabel-comet in an interpreter of its own (fixture `comet_python`): the calls that we make of it.

A line's score is made of the lengths of its texts; a checkpoint holds the name of what is to go wrong, or nothing.
"""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

assert find_spec("nmt") is None and find_spec("numpy") is None  # the interpreter is another one, and knows nothing of ours
print("a package may print what it likes")


class Prediction(dict):
    __getattr__ = dict.__getitem__


class Model:
    def __init__(self, trouble):
        self.trouble, self.unit = trouble, 1000

    def eval(self):
        return self

    def half(self):
        self.unit = 500

    def on_predict_batch_end(self, outputs, batch, index):
        raise NotImplementedError

    def predict(self, samples, batch_size, gpus, progress_bar):
        assert (gpus, progress_bar) == (0, False)
        scores = [(len(one["src"]) + 10 * len(one["mt"]) + 100 * len(one["ref"])) / self.unit for one in samples]
        for start in range(0, len(scores), batch_size):
            self.on_predict_batch_end(Prediction(scores=scores[start : start + batch_size]), None, start)
        if self.trouble == "raise":
            raise RuntimeError("no room\nfor that")
        if self.trouble == "exit":
            os._exit(3)
        if self.trouble == "kill":
            os.kill(os.getpid(), 9)
        if self.trouble == "nan":
            scores[1] = float("nan")
        if self.trouble == "short":
            scores.pop()
        if self.trouble.startswith("wait"):
            Path(self.trouble.split()[1]).write_text(str(os.getpid()))
            time.sleep(600)
        return Prediction(scores=scores)


def download_model(name):
    if name == "Unbabel/known":
        return str(Path(__file__).with_name("known.ckpt"))
    try:
        raise OSError("the hub cannot be reached")
    except OSError:
        try:
            raise ValueError("nor is it an old one")
        except ValueError:
            raise KeyError(f"Model '{name}' not supported by COMET.")  # noqa: B904


def load_from_checkpoint(path):
    trouble = Path(path).read_text()
    if trouble == "broken":
        raise RuntimeError("hparams.yaml is missing")
    return Model(trouble)


class cuda:  # of torch
    @staticmethod
    def is_available():
        return False

    @staticmethod
    def device_count():
        return 0


sys.modules["torch"] = sys.modules[__name__]
