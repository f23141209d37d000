"""The two languages of a corpus. Their codes are the suffixes of its text files: `train.en`, `train.de`."""

from typing import Self

from pydantic import Field, model_validator

from nmt.config import Config

CODE = r"^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$"


class Languages(Config):
    """Section `corpora.*.languages`: codes such as en, de, pt-BR."""

    src: str = Field(pattern=CODE)
    tgt: str = Field(pattern=CODE)

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.src == self.tgt:
            raise ValueError(f"src and tgt are both {self.src}, but name the text files of a set apart: give one of them a suffix")
        return self
