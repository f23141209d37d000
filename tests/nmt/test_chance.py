import numpy as np

from nmt.chance import mixed


def test_the_numbers_are_those_of_splitmix64() -> None:
    """Published: the first outputs of the generator with seed 1234567 (Rosetta Code, Pseudo-random numbers/Splitmix64).

    The generator adds a constant to its state for each output; `mixed` counts in whole numbers, so its constant is multiplied.
    """
    golden, seed = 0x9E3779B97F4A7C15, 1234567
    inverse = pow(golden, -1, 2**64)
    numbers = np.array([(seed * inverse + number) % 2**64 for number in range(5)], dtype=np.uint64)
    assert mixed(numbers).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
