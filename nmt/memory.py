"""What the decoder sees of the sources: their keys and values in each layer, computed once.

B sentences padded to one length S; H heads, L layers. Copies of a sentence stand behind them, so that one kernel computes attention
whatever their number (`nmt.products`).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nmt.batches import rounded
from nmt.model import DecoderLayer, padding_mask
from nmt.products import Decoding


class Memory:
    """Of the sources src [B, S], which are the sentences `first`, `first` + 1, … of a decoder."""

    def __init__(self, decoding: Decoding, layers: Sequence[DecoderLayer], src: Tensor, first: int) -> None:
        count, width = src.shape
        self.enough = decoding.enough(width)
        self.places = list(range(first, first + count))  # among the decoder's sentences
        src = _filled(src, decoding.enough(width * width))
        mask = padding_mask(src)
        encoded = decoding.encode(src, mask)
        made = [[_filled(x[:count], self.enough) for x in layer.cross_attention.keys_values(encoded)] for layer in layers]
        keys, self.values = (torch.stack(x) for x in zip(*made, strict=True))  # values [L, B, H, S, d_v]
        # A product by keys that stand transposed is several times as fast.
        self.keys = keys.transpose(3, 4).contiguous()  # [L, B, H, d_k, S]
        self.mask = None if mask is None else _filled(mask[:count], self.enough)

    def of(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and mask in a layer, of the sentences and as many copies as attention needs."""
        size = multiple(len(self.places), self.enough)
        return self.keys[layer, :size], self.values[layer, :size], None if self.mask is None else self.mask[:size]

    def rows(self) -> Tensor:
        """The places of the sentences that `of` gives, a copy's being the first one's."""
        return _filled(torch.tensor(self.places), self.enough)

    def follow(self, moved: Mapping[int, int]) -> bool:
        """Keep the sentences whose places are in `moved`, which says where they are now. Returns whether any are left.

        As few as possible are copied: the last ones, to where others were.
        """
        kept = [place in moved for place in self.places]
        count = sum(kept)
        last = (slot for slot in range(count, len(kept)) if kept[slot])
        for hole in range(count):
            if not kept[hole]:
                slot = next(last)
                self.places[hole] = self.places[slot]
                for part in (self.keys, self.values):
                    part[:, hole] = part[:, slot]
                if self.mask is not None:
                    self.mask[hole] = self.mask[slot]
        self.places = [moved[place] for place in self.places[:count]]
        return count > 0


def multiple(size: int, step: int) -> int:
    """A multiple of `step` that is at least `size`, one of few, because libraries prepare a product for each shape anew."""
    return rounded(-(-size // step)) * step


def _filled(x: Tensor, step: int) -> Tensor:
    """x [B, …] with copies of its first row up to a multiple of `step` rows."""
    more = multiple(x.size(0), step) - x.size(0)
    return torch.cat([x, x[:1].expand(more, *x.shape[1:])]) if more else x
