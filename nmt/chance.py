"""Chance that is the same at any time: whole numbers to numbers as if drawn, many at once."""

import numpy as np
from numpy.typing import NDArray


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each number as if drawn evenly from all of 64 bits, different ones for different numbers: SplitMix64 (Steele et al. 2014)."""
    numbers = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
