"""What Vaswani et al. 2017 report, to stand beside our own: newstest2014 in Table 2, newstest2013 (our valid) in Table 3.

The paper's BLEU is cased `multi-bleu.perl` over Moses tokens with compounds split and plain quotes. The same outputs scored by both kinds,
as others published them: tensor2tensor's base 29.02 and 27.52 (sacreBLEU), fairseq's big 29.29 and 28.6, English-French 43.2 and 41.4.
"""

METRIC = "bleu_moses_split_quotes"  # of scores.json: the kind that the paper quotes
BLEU = {
    ("wmt14-en-de", "base"): {"newstest2014": 27.3, "valid": 25.8},
    ("wmt14-en-de", "big"): {"newstest2014": 28.4, "valid": 26.4},
    ("wmt14-en-fr", "base"): {"newstest2014": 38.1},
    ("wmt14-en-fr", "big-en-fr"): {"newstest2014": 41.8},  # the arXiv edition; the NIPS edition has 41.0
}
