"""How ranks share the work of a run."""

from dataclasses import dataclass

from fsdp_lab.settings.reading.fields import Settings, setting

_SHARE = r"(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?"
_SHARES = (rf"{_SHARE}( *, *{_SHARE})*", "numbers above 0, one for each of the ranks, by commas: 3,1")


@dataclass(frozen=True)
class ParallelConfig(Settings):
    """How the ranks share the work: pp x dp x tp of them (docs/trainer/layouts.md)."""

    dp: int = setting(0, "data-parallel ranks, each with batches of its own; 0: all that tp and pp leave", at_least=0)
    dp_replicas: int = setting(
        1,
        "copies of the weights that the data-parallel ranks keep: 1 shards one over all of them (FSDP2), dp keeps one "
        "on each (DDP), a number between them shards each copy (HSDP)",
        at_least=1,
    )
    tp: int = setting(1, "ranks that every block is divided over, as layout says", at_least=1)
    layout: str = setting(
        "tp",
        "what the tp ranks divide: heads and columns (tp), positions (sp), or both in turn (galaxy, galaxy2)",
        choices=("tp", "sp", "galaxy", "galaxy2"),
    )
    shares: str | None = setting(
        None,
        "how much of heads, columns, words and positions each tp rank takes: 3,1; of a pipeline without tp how many "
        "blocks each stage has; none: equal parts",
        pattern=_SHARES,
        numbers=True,
    )
    pp: int = setting(1, "ranks of a pipeline, each with some consecutive blocks", at_least=1)
    pp_schedule: str = setting(
        "1f1b", "order of a pipeline's micro-batches", choices=("gpipe", "1f1b", "interleaved", "zbv")
    )
    pp_micro_batches: int = setting(
        0, "micro-batches that a pipeline divides a batch into; 0: one for each sequence, at most 4 a rank", at_least=0
    )

    @property
    def is_divided(self) -> bool:
        """Is the model divided over ranks, beside FSDP2's shards of its weights?"""
        return self.tp > 1 or self.pp > 1

    @property
    def share_list(self) -> list[float]:
        """The shares of the tp ranks, or of the stages of a pipeline without these: one number each."""
        shared = self.tp if self.tp > 1 else self.pp
        return [float(share) for share in self.shares.split(",")] if self.shares else [1.0] * shared
