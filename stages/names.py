"""Names of corpora and variants, as people type them."""

from nmt.config import nearest
from nmt.errors import UserError
from stages import params


def check(kind: str, name: str) -> str:
    """`name`, if params.yaml has it below `kind`: corpora or variants. Raises UserError with the nearest one if not, dots and all."""
    known = list(params.value(kind))
    if name not in known:
        raise UserError(f"{params.PARAMS}: there is no {kind}.{name}: {nearest(name, known)}")
    return name
