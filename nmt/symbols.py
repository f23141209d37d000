"""The special token ids, the same in every vocabulary. `UNKNOWN` is never produced: rare characters become bytes."""

PAD, UNKNOWN, BOS, EOS = 0, 1, 2, 3
