"""Other toolkits: their models, losses and optimizers, stepped through their public classes, each where its toolkit is installed.

Each is given batches of pairs of token ids without special tokens, and returns what computes forward, backward and an Adam step on the
batch of a number. All are post-norm with dropout 0.1 except OpenNMT-py's and Sockeye's, which come pre-norm: the products are the same.
Tried: transformers 5.24, fairseq-fixed 0.12.3.1, OpenNMT-py 3.5.1 and sockeye 3.1.34 (both without their pins), joeynmt 2.3.0, torch 2.13.
"""

import logging
import os
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from workload import BOS, DROPOUT, EOS, LONGEST, ORDINARY, PAD, SMOOTHING, Pairs, Sizes

Step = Callable[[int], None]
RATE, BETAS = 1e-4, (0.9, 0.98)


def rows(sentences: list[list[int]], special: dict[int, int] | None = None) -> Tensor:
    """One row a sentence, padded; ids below ORDINARY become those that `special` gives. [B, longest] int64"""
    longest = max(map(len, sentences))
    found = np.array([sentence + [PAD] * (longest - len(sentence)) for sentence in sentences])
    if special:
        renamed = np.arange(found.max() + 1)
        renamed[list(special)] = list(special.values())
        found = renamed[found]
    return torch.from_numpy(found)


def sides(pairs: Pairs, special: dict[int, int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Source with end symbol, target behind a begin symbol, target with end symbol."""
    src = rows([source + [EOS] for source, _ in pairs], special)
    into = rows([[BOS, *target] for _, target in pairs], special)
    return src, into, rows([target + [EOS] for _, target in pairs], special)


def lengths(pairs: Pairs) -> tuple[Tensor, Tensor, int]:
    """Lengths of the sources and targets, end symbols counted, and the sum of the latter."""
    src, tgt = (torch.tensor([len(pair[side]) + 1 for pair in pairs]) for side in (0, 1))
    return src, tgt, int(tgt.sum())


def half(precision: str, device: str = "cpu") -> torch.autocast:
    """Products in bfloat16 where `precision` says so."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16")


def _of_logits(model: nn.Module, logits: Callable[[Tensor, Tensor], Tensor], precision: str, device: str, batches: list[Pairs]) -> Step:
    """Cross entropy and Adam as PyTorch has them."""
    data = [[tensor.to(device) for tensor in sides(pairs)] for pairs in batches]
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), RATE, BETAS, 1e-9)

    def step(number: int) -> None:
        src, into, out = data[number]
        optimizer.zero_grad()
        with half(precision, device):
            found = logits(src, into)
        loss = nn.functional.cross_entropy(found.float().flatten(0, 1), out.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def torch_layers(c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """`torch.nn.Transformer`."""
    transformer = nn.Transformer(c["d_model"], c["heads"], c["layers"], c["layers"], c["d_ff"], DROPOUT, batch_first=True)
    model = nn.ModuleDict(dict(embedding=nn.Embedding(c["vocab"], c["d_model"]), transformer=transformer))
    nn.init.normal_(model["embedding"].weight, std=c["d_model"] ** -0.5)
    angles = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(0, c["d_model"], 2) / c["d_model"])
    positions = torch.stack([angles.sin(), angles.cos()], 2).flatten(1).to(device)

    def embed(ids: Tensor) -> Tensor:
        return nn.functional.dropout(model["embedding"](ids) * c["d_model"] ** 0.5 + positions[: ids.size(1)], DROPOUT)

    def logits(src: Tensor, into: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(into.size(1), device=into.device)
        padding = dict(src_key_padding_mask=src == PAD, memory_key_padding_mask=src == PAD)
        states = transformer(embed(src), embed(into), tgt_mask=causal, tgt_is_causal=True, **padding)
        return states @ model["embedding"].weight.T

    return _of_logits(model, logits, precision, device, batches)


def marian(c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """Hugging Face's Marian."""
    from transformers import MarianConfig, MarianMTModel

    shape: dict[str, Any] = dict(vocab_size=c["vocab"], d_model=c["d_model"], activation_function="relu", scale_embedding=True)
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": c["layers"], f"{side}_ffn_dim": c["d_ff"], f"{side}_attention_heads": c["heads"]}
    special = dict(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS)
    model = MarianMTModel(MarianConfig(dropout=DROPOUT, attention_dropout=0.0, activation_dropout=0.0, **shape, **special))

    def logits(src: Tensor, into: Tensor) -> Tensor:
        return model(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=into, use_cache=False).logits

    return _of_logits(model, logits, precision, device, batches)


def fairseq(c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """fairseq's model, criterion and Adam."""
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel
    from fairseq.models.transformer.transformer_legacy import base_architecture
    from fairseq.optim.adam import Adam

    words = Dictionary()
    for number in range(ORDINARY, c["vocab"]):
        words.add_symbol(f"w{number}")
    options = Namespace(dropout=DROPOUT, share_all_embeddings=True, max_source_positions=LONGEST, max_target_positions=LONGEST)
    for side in ("encoder", "decoder"):
        for name, value in (("embed_dim", "d_model"), ("ffn_embed_dim", "d_ff"), ("layers", "layers"), ("attention_heads", "heads")):
            setattr(options, f"{side}_{name}", c[value])
    base_architecture(options)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    model = TransformerModel.build_model(options, task).train()
    criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=SMOOTHING)
    optimizer = Adam(model.parameters(), lr=RATE, betas=BETAS)
    data = []
    for pairs in batches:
        src, into, out = sides(pairs, {PAD: words.pad(), BOS: words.bos(), EOS: words.eos()})
        source_lengths, _, tokens = lengths(pairs)
        inputs = dict(src_tokens=src, src_lengths=source_lengths, prev_output_tokens=into)
        data.append(dict(net_input=inputs, target=out, ntokens=tokens))

    def step(number: int) -> None:
        with half(precision):
            loss, tokens, _ = criterion(model, data[number])
        (loss / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def opennmt(c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """OpenNMT-py's model, loss and optimizer."""
    import onmt.bin.train
    import onmt.opts
    from onmt.inputters.inputter import build_vocab
    from onmt.model_builder import build_model
    from onmt.utils.loss import LossCompute
    from onmt.utils.optimizers import Optimizer
    from onmt.utils.parse import ArgumentParser

    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder, "vocabulary")
        vocabulary.write_text("".join(f"w{number}\t1\n" for number in range(ORDINARY, c["vocab"])), encoding="utf-8")
        parser = ArgumentParser()
        onmt.opts.train_opts(parser)
        chosen: dict[str, Any] = dict(
            data="{}", save_model=f"{folder}/model", src_vocab=vocabulary, tgt_vocab=vocabulary, encoder_type="transformer",
            decoder_type="transformer", layers=c["layers"], hidden_size=c["d_model"], word_vec_size=c["d_model"], transformer_ff=c["d_ff"],
            heads=c["heads"], dropout=DROPOUT, attention_dropout=DROPOUT, label_smoothing=SMOOTHING, optim="adam", adam_beta2=BETAS[1],
            learning_rate=RATE, param_init=0, max_grad_norm=0, normalization="tokens",
        )  # fmt: skip
        switches = ["-share_vocab", "-share_embeddings", "-share_decoder_embeddings", "-position_encoding", "-param_init_glorot"]
        options, _ = parser.parse_known_args([*switches, *(part for name, value in chosen.items() for part in (f"-{name}", str(value)))])
        options.data, options.data_task = {}, "seq2seq"
        options.src_words_min_frequency = options.tgt_words_min_frequency = 0
        ArgumentParser.update_model_opts(options)
        vocabularies = build_vocab(options, {"src": [], "tgt": []})
    words = vocabularies["src"]
    model = build_model(options, options, vocabularies, None, -1).train()
    optimizer = Optimizer.from_opt(model, options)
    criterion = LossCompute.from_opts(options, model, vocabularies["tgt"])
    ids = torch.tensor(
        [words["<blank>"], words["<unk>"], words["<s>"], words["</s>"], *(words[f"w{n}"] for n in range(ORDINARY, c["vocab"]))]
    )
    data = []
    for pairs in batches:
        src, into, out = (ids[side] for side in sides(pairs))
        source_lengths, _, tokens = lengths(pairs)
        data.append(dict(src=src[:, :, None], tgt=torch.cat([into[:, :1], out], 1)[:, :, None], srclen=source_lengths, tokens=tokens))

    def step(number: int) -> None:
        batch = data[number]
        optimizer.zero_grad(set_to_none=True)
        with half(precision):
            states, attention = model(batch["src"], batch["tgt"], batch["srclen"], bptt=False, with_align=False)
            loss, _ = criterion(batch, states, attention, trunc_start=0, trunc_size=batch["tgt"].size(1))
        optimizer.backward(loss / batch["tokens"])
        optimizer.step()

    return step


def sockeye(c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """Sockeye's model, traced as its trainer does, and its loss, with PyTorch's Adam."""
    from sockeye import constants, data_io, encoder, loss, transformer
    from sockeye.model import ModelConfig, SockeyeModel
    from sockeye.training import ModelWithLoss

    layers = transformer.TransformerConfig(
        model_size=c["d_model"], attention_heads=c["heads"], feed_forward_num_hidden=c["d_ff"], act_type="relu", num_layers=c["layers"],
        dropout_attention=DROPOUT, dropout_act=DROPOUT, dropout_prepost=DROPOUT, positional_embedding_type="fixed", preprocess_sequence="n",
        postprocess_sequence="dr", max_seq_len_source=LONGEST, max_seq_len_target=LONGEST, depth_key_value=c["d_model"],
    )  # fmt: skip
    embedding = encoder.EmbeddingConfig(vocab_size=c["vocab"], num_embed=c["d_model"], dropout=DROPOUT)
    statistics = SimpleNamespace(length_ratio_mean=1.0, length_ratio_std=0.2)
    longest = dict(max_seq_len_source=LONGEST, max_seq_len_target=LONGEST)
    config = ModelConfig(
        config_data=data_io.DataConfig(data_statistics=statistics, num_source_factors=1, num_target_factors=1, **longest),
        vocab_source_size=c["vocab"], vocab_target_size=c["vocab"], config_embed_source=embedding, config_embed_target=embedding,
        config_encoder=layers, config_decoder=layers, weight_tying_type=constants.WEIGHT_TYING_SRC_TRG_SOFTMAX,
    )  # fmt: skip
    model = SockeyeModel(config).train()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    optimizer = torch.optim.Adam(model.parameters(), RATE, BETAS)
    special = {PAD: constants.PAD_ID, BOS: constants.BOS_ID, EOS: constants.EOS_ID}
    data = []
    for pairs in batches:
        src, into, out = sides(pairs, special)
        source_lengths, target_lengths, _ = (found.int() if isinstance(found, Tensor) else found for found in lengths(pairs))
        inputs = dict(source=src[:, :, None].int(), source_length=source_lengths[:, None])
        inputs |= dict(target=into[:, :, None].int(), target_length=target_lengths[:, None])
        data.append(dict(inputs, labels={constants.TARGET_LABEL_NAME: out}))
    example = tuple(data[0][name] for name in ("source", "source_length", "target", "target_length"))
    traced = ModelWithLoss(torch.jit.trace(model, example, strict=False), [loss.CrossEntropyLoss(label_smoothing=SMOOTHING)])

    def step(number: int) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
            total, _, _ = traced(**data[number])
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def joeynmt(c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """JoeyNMT's model, loss and optimizer."""
    from joeynmt.batch import Batch
    from joeynmt.builders import build_optimizer
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=BOS, eos_id=EOS, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"w{number}" for number in range(ORDINARY, c["vocab"])], special)
    side = dict(
        type="transformer", num_layers=c["layers"], num_heads=c["heads"], hidden_size=c["d_model"], ff_size=c["d_ff"], dropout=DROPOUT
    )
    side["embeddings"] = dict(embedding_dim=c["d_model"], scale=True, dropout=DROPOUT)
    start = dict(
        initializer="xavier_uniform", embed_initializer="xavier_uniform", bias_initializer="zeros", init_gain=1.0, embed_init_gain=1.0
    )
    tied = dict(tied_embeddings=True, tied_softmax=True)
    model = build_model(dict(start, encoder=side, decoder=dict(side), **tied), words, words).train()
    model.loss_function = ("crossentropy", SMOOTHING)
    optimizer = build_optimizer(dict(optimizer="adam", learning_rate=RATE, adam_betas=list(BETAS)), parameters=model.parameters())
    data = []
    for pairs in batches:
        src, into, out = sides(pairs, {PAD: special.pad_id})
        batch = Batch(
            src=src, src_length=lengths(pairs)[0], src_prompt_mask=None, trg=torch.cat([into[:, :1], out], 1), trg_prompt_mask=None,
            indices=torch.arange(len(pairs)), device=torch.device("cpu"), pad_index=special.pad_id, eos_index=EOS, is_train=True,
        )  # fmt: skip
        batch.sort_by_src_length()
        data.append(batch)

    def step(number: int) -> None:
        batch = data[number]
        with half(precision):
            loss, _, _, _ = model(return_type="loss", **vars(batch))
        batch.normalize(loss, normalization="tokens", n_gpu=0, n_accumulation=1).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PEERS: dict[str, Callable[[Sizes, str, str, list[Pairs]], Step]] = {
    "nn.Transformer": torch_layers,
    "marian": marian,
    "fairseq": fairseq,
    "opennmt": opennmt,
    "sockeye": sockeye,
    "joeynmt": joeynmt,
}


def peer(name: str, c: Sizes, precision: str, device: str, batches: list[Pairs]) -> Step:
    """The step of a peer with the sizes `c`. Only nn.Transformer and Marian know another device than the CPU."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # OpenNMT-py's own files need it
    torch.manual_seed(1)
    return PEERS[name](c, precision, device, batches)
