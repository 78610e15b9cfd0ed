"""The methods, by family. Importing this package registers all of them.

Begin with `identity`, the smallest. `quantisers` send every element in fewer bits, `sparsifiers` few of the elements,
`projections` a few numbers for many elements together (low rank, sketches, learnt linear codes); `delta` carries
parameters as what changed since the last gather; `owners` brings matrices together at the ranks that sum them; `zero`
sends nothing, the control of every comparison. `shared` has what several families use.
"""

from comm_compress.methods import delta, identity, owners, projections, quantisers, sparsifiers, zero

__all__ = ["delta", "identity", "owners", "projections", "quantisers", "sparsifiers", "zero"]
