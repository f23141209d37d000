"""What all tests share."""

import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: threads that spin while they wait cost half of the time

# The same examples in every run and no time limit per example: a test fails by its content, not by chance or a busy machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """600 short lines of words, English and German, of the kind that a tokenizer can be trained on."""
    words = "the house is old a cat sees tree and red light das Haus ist alt eine Katze sieht den Baum und grün schön Öl".split()
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))) + rng.choice([".", "!", "", " …"]) for _ in range(600)]


@pytest.fixture(scope="session")
def tokenizer_file(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real SentencePiece model of 330 pieces, trained on `sentences`. Not to be written to."""
    from nmt.tokenizer import TokenizerConfig, train_tokenizer

    config = TokenizerConfig(type="bpe", vocab_size=330, normalization="identity", sample_lines=1000)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train_tokenizer(sentences, config, "tokenizer"))
    return path


@pytest.fixture(scope="session")
def model_folder(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model as `average` writes it, of random weights and the smallest size. Not to be written to."""
    return _random_model(tmp_path_factory.mktemp("model") / "averaged", tokenizer_file, "sinusoidal")


@pytest.fixture(scope="session")
def learned_model_folder(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with learned positions, so that a line may be too long for it. Not to be written to."""
    return _random_model(tmp_path_factory.mktemp("learned") / "averaged", tokenizer_file, "learned")


@pytest.fixture(scope="session")
def taught_model_folder(tokenizer_file: Path, sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers that was taught for two seconds to copy `sentences`: its translations end, and it is sure of them."""
    import torch

    from nmt.batches import padded
    from nmt.bundle import save_bundle
    from nmt.model import ModelConfig, Transformer
    from nmt.symbols import BOS, PAD
    from nmt.tokenizer import Tokenizer

    torch.set_num_threads(1)
    shape = {"layers": 2, "d_model": 32, "d_ff": 64, "heads": 4, "d_k": 8, "d_v": 8, "dropout": 0.0, "positions": "sinusoidal"}
    tokenizer = Tokenizer.load(tokenizer_file)
    torch.manual_seed(3)
    model = Transformer(ModelConfig.model_validate(shape), tokenizer.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, betas=(0.9, 0.98))
    ids = tokenizer.encode(sentences)
    for _ in range(120):
        tokens = padded([ids[i] for i in torch.randint(0, len(ids), (16,)).tolist()])
        before = torch.cat([tokens.new_full((16, 1), BOS), tokens[:, :-1]], 1)
        logits = model.logits(model(tokens, before)).flatten(0, 1)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, tokens.flatten(), ignore_index=PAD).backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("taught") / "runs" / "toy" / "small" / "averaged"
    facts = {
        "model": shape,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_sha256": tokenizer.sha256,
        "languages": {"src": "en", "tgt": "de"},
    }
    save_bundle(folder, model.state_dict(), tokenizer_file, facts)
    return folder


@pytest.fixture(scope="session")
def comet_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another interpreter, in which `tests/stand_in_comet.py` is installed as unbabel-comet 9.9."""
    import venv

    folder = tmp_path_factory.mktemp("comet")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "comet").mkdir()
    shutil.copy(Path(__file__).with_name("stand_in_comet.py"), packages / "comet" / "__init__.py")
    (packages / "comet" / "known.ckpt").write_text("")
    (packages / "unbabel_comet-9.9.dist-info").mkdir()
    (packages / "unbabel_comet-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 9.9\n")
    return folder / "bin" / "python"


def _random_model(folder: Path, tokenizer_file: Path, positions: str) -> Path:
    import torch

    from nmt.bundle import save_bundle
    from nmt.model import ModelConfig, Transformer
    from nmt.symbols import EOS
    from nmt.tokenizer import Tokenizer

    shape = {"layers": 1, "d_model": 8, "d_ff": 16, "heads": 2, "d_k": 4, "d_v": 4, "dropout": 0.1, "positions": positions}
    tokenizer = Tokenizer.load(tokenizer_file)
    torch.manual_seed(14)
    model = Transformer(ModelConfig.model_validate(shape), tokenizer.vocab_size)
    with torch.no_grad():
        model.embedding.weight[EOS] *= 3  # some of its translations end, others are cut
    facts = {"model": shape, "vocab_size": tokenizer.vocab_size, "tokenizer_sha256": tokenizer.sha256}
    save_bundle(folder, model.state_dict(), tokenizer_file, facts)
    return folder
