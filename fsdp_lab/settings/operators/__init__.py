"""Which implementation computes each operator of a model (``--operators``): read `table` first, which lists them all.

Nothing here needs torch, so that a wrong choice is refused before any rank starts.
"""

from fsdp_lab.settings.operators.choose import Facts, choose, complaints_about, named
from fsdp_lab.settings.operators.table import OPERATORS, WORDS

__all__ = ["OPERATORS", "WORDS", "Facts", "choose", "complaints_about", "named"]
