"""The definition of every kernel, in torch operations: it runs on any device, slowly.

A module is imported when a tensor first needs it; type checkers read all of them here, for `dispatch`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comm_compress.kernels.reference import (
        bitmap as bitmap,
        bits as bits,
        blocks as blocks,
        casts as casts,
        changes as changes,
        entropy as entropy,
        factors as factors,
        finite as finite,
        matrix_scales as matrix_scales,
        onebit as onebit,
        positions as positions,
        powers as powers,
        random as random,
        residual as residual,
        select as select,
        sketch as sketch,
        streams as streams,
        subsets as subsets,
        trits as trits,
        ulp as ulp,
        votes as votes,
    )
