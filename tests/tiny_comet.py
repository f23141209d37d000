"""A COMET model of random weights, as small as can be, in the files that a published one has. Run in COMET's own interpreter, no network.

python tests/tiny_comet.py FOLDER    ->    FOLDER/checkpoints/model.ckpt, FOLDER/hparams.yaml, FOLDER/encoder/…
"""

import random
import sys
from pathlib import Path

import pytorch_lightning
import sentencepiece
import torch
import yaml
from comet.models import RegressionMetric
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast

WORDS = "the house is old a cat sees tree red light das Haus ist alt eine Katze sieht den Baum und grün schön Öl nicht verbunden".split()


def main(folder: Path) -> None:
    """Write the model. The same version of everything writes the same weights."""
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    rng = random.Random(1)
    text = [" ".join(rng.choices(WORDS, k=7)) for _ in range(400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(encoder / "sentencepiece.bpe"), vocab_size=90, hard_vocab_limit=False, minloglevel=2
    )
    tokenizer = XLMRobertaTokenizerFast(tokenizer_object=_fast(str(encoder / "sentencepiece.bpe.model")))
    tokenizer.save_pretrained(encoder)
    torch.manual_seed(1)
    shape = XLMRobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=130, initializer_range=0.3, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1,
    )  # fmt: skip
    XLMRobertaModel(shape, add_pooling_layer=False).save_pretrained(encoder)
    model = RegressionMetric(
        encoder_model="XLM-RoBERTa", pretrained_model=str(encoder), hidden_sizes=[64, 32], activations="Tanh", nr_frozen_epochs=0.3,
        layer_transformation="sparsemax",
    )  # fmt: skip
    trainer = pytorch_lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(model)
    (folder / "checkpoints").mkdir()
    trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt")
    (folder / "hparams.yaml").write_text(yaml.safe_dump({**model.hparams, "class_identifier": "regression_metric"}), encoding="utf-8")


def _fast(file: str) -> Tokenizer:
    """The SentencePiece model as transformers keeps that of XLM-R: other special pieces before it, one behind it."""
    model = sentencepiece.SentencePieceProcessor(model_file=file)
    pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(3, model.get_piece_size())]
    found = Tokenizer(models.Unigram([*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")), *pieces, ("<mask>", 0.0)], unk_id=3))
    found.normalizer, found.pre_tokenizer, found.decoder = normalizers.NFKC(), pre_tokenizers.Metaspace(), decoders.Metaspace()
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
