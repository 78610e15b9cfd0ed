"""What is to be trained, and how a prediction is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.parallel.planning.shape import ModelShape, shape_of

FLOAT = 4
"""Bytes of a float32: what weights, gradients and uncompressed activations are counted in."""


@dataclass(frozen=True)
class Methods:
    """What carries activations and their gradients, and what carries parameters' gradients ("none": torch's own
    collectives). ``bits``: by method, sent for an element.
    """

    activations: str = "none"
    gradients: str = "none"
    bits: Mapping[str, float] = field(default_factory=dict, compare=False)

    def bits_of(self, method: str) -> float:
        """Bits that ``method`` sends for an element. ValueError where nobody said."""
        known = {"none": 32.0, "identity": 32.0, **self.bits}
        if method not in known:
            raise ValueError(f"methods: how many bits {method} sends is not known; say it in bits")
        return known[method]


@dataclass(frozen=True)
class Job:
    """A model and the batch of one step over all ranks: ``sequences`` of ``length`` tokens. ``micro_batches``: into how
    many parts a pipeline cuts it.
    """

    model: str
    shape: ModelShape
    sequences: int
    length: int
    micro_batches: int

    @classmethod
    def of(cls, model: str, sequences: int, length: int, micro_batches: int = 0) -> Job:
        """The job of a preset; ValueError where there is none. ``micro_batches`` 0: the most up to 4 that divide it."""
        shape = shape_of(model)
        if sequences < 1 or length < 2:
            raise ValueError(f"batch: {sequences} sequences of {length} tokens; wants 1 or more, of 2 tokens or more")
        if shape.context and length > shape.context:
            raise ValueError(f"length: {length} tokens, and {model} has {shape.context} positions")
        if micro_batches and sequences % micro_batches:
            raise ValueError(f"micro_batches: {sequences} sequences do not make {micro_batches} of one size")
        chosen = micro_batches or max(m for m in (1, 2, 3, 4) if sequences % m == 0)
        return cls(model, shape, sequences, length, chosen)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences of a step."""
        return self.sequences * self.length

    @property
    def head_tokens(self) -> int:
        """Those that the head sees: all, or the masked ones."""
        return self.sequences * num_chosen(self.length) if self.shape.is_masked else self.tokens


@dataclass(frozen=True)
class Prediction:
    """What one step takes. Times in seconds, of the whole step; ``sent`` and ``memory`` in bytes, by rank."""

    compute_s: float
    link_s: float
    update_s: float
    sent: tuple[float, ...]
    memory: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Forward, backward, all communication and the optimizer."""
        return self.compute_s + self.link_s + self.update_s

    @property
    def gradients_s(self) -> float:
        """The step without the optimizer: what `fsdp-lab bench layouts` measures."""
        return self.compute_s + self.link_s


@dataclass(frozen=True)
class Candidate:
    """One way to run the job. ``shares``: of the layout by rank; in a pipeline the blocks of each stage.

    ``refused``: why it cannot be had; then ``prediction`` may be None.
    """

    layout: str
    shares: tuple[int, ...]
    methods: Methods
    prediction: Prediction | None = None
    refused: str = ""

    def but(self, refused: str) -> Candidate:
        """This candidate as one that cannot be had, with the reason ``refused``."""
        return replace(self, refused=refused)
