"""Fields about what was sent, and how far it was from exact.

Bytes are sent by one rank to others, mean over the ranks, whole training. Fidelity is the means over ``grad_samples``
sampled steps (``--grad_error_every``), all units and ranks together. c: the reduced gradient, g: the exact mean of the
ranks' gradients of that step, without feedback's residuals.
"""

from fsdp_lab.results.schema.field import Field

BYTES = (
    Field(
        "bytes_raw_total", "int", "bytes", "what the same exchanges would send uncompressed, in comm_dtype/param_dtype"
    ),
    Field("bytes_compressed_total", "int", "bytes", "what was sent, both directions (gradients and parameters)"),
    Field("bytes_raw_by_op", "object of int", "bytes", "bytes_raw_total by collective"),
    Field("bytes_compressed_by_op", "object of int", "bytes", "bytes_compressed_total by collective"),
    Field(
        "elements_by_op",
        "object of int",
        "elements",
        "elements behind bytes_raw_by_op: times 4 the fp32 baseline, times 2 the bf16 one",
        since=2,
    ),
    Field(
        "outer_bits",
        "float",
        "bits",
        "what R replicas exchange, a trained parameter and optimiser step: 8 x bytes of outer x R / (R - 1) / "
        "(parameters of a rank x steps); null without outer",
        "no",
    ),
    Field("value_bytes", "int", "bytes", "values among bytes_compressed_total", nullable=True),
    Field("index_bytes", "int", "bytes", "indices among bytes_compressed_total", nullable=True),
    Field("metadata_bytes", "int", "bytes", "scales, lengths, padding among bytes_compressed_total", nullable=True),
    Field("bytes_source", "counted|computed", "", "counted where sent, or computed from shapes (stock collectives)"),
    Field(
        "compression_ratio",
        "float",
        "raw / compressed",
        "all traffic, against the dtypes that FSDP2 handed over; null when nothing was sent",
        nullable=True,
    ),
    Field("compression_ratio_vs_fp32", "float", "fp32 / compressed", "all traffic, had it been fp32", nullable=True),
    Field("compression_ratio_vs_bf16", "float", "bf16 / compressed", "all traffic, had it been bf16", nullable=True),
    Field("compression_ratio_reduce_scatter", "float", "raw / compressed", "gradients alone", nullable=True),
    Field(
        "compression_ratio_reduce_scatter_vs_fp32",
        "float",
        "fp32 / compressed",
        "gradients alone, had they been fp32",
        nullable=True,
    ),
    Field(
        "compression_ratio_reduce_scatter_vs_bf16",
        "float",
        "bf16 / compressed",
        "gradients alone, had they been bf16",
        nullable=True,
    ),
)
FIDELITY = (
    Field("grad_samples", "int", "steps", "steps whose reduced gradient was compared with the exact one", since=2),
    Field("grad_rel_error", "float", "", "norm of c - g over norm of g; null when nothing was compared", nullable=True),
    Field("grad_cos_sim", "float", "-1 to 1", "cosine of c and g; null also when c is zero", nullable=True),
    Field(
        "residual_norm",
        "float",
        "",
        "norm of what the ranks kept back for later steps / norm of their gradients; 0 without feedback",
        nullable=True,
    ),
    Field(
        "density",
        "float",
        "0 to 1",
        "share of a unit's elements that a rank's message makes non-zero; 1 for methods that are not sparse",
        nullable=True,
    ),
)
