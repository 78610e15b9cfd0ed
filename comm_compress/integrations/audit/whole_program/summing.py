"""What all ranks of a program counted, as one table and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from comm_compress.integrations.audit.lines import Line
from comm_compress.integrations.audit.table import table
from comm_compress.integrations.audit.whole_program.count_files import RankCounts

_FEW = 3  # groups that a cell of the table has by their ranks


@dataclass(frozen=True)
class ProgramAudit:
    """What `audit_program` returns.

    ``exit_code`` is the program's own, 128 + N where signal N ended it. ``ranks``: every process that became a rank,
    by rank. ``troubles``: why others that did could not count.
    """

    command: tuple[str, ...]
    exit_code: int
    ranks: tuple[RankCounts, ...]
    troubles: tuple[str, ...]

    @property
    def lines(self) -> list[Line]:
        """Sums over the ranks by collective, kind of group, dtype and caller, the most bytes first."""
        summed: dict[tuple[object, ...], Line] = {}
        groups: dict[tuple[object, ...], set[str]] = {}
        for line in (line for rank in self.ranks for line in rank.lines):
            name, _, members = line.group.rpartition(" ")
            key = (line.op, name, _size(members), line.dtype, line.where, line.through)
            whole = summed.setdefault(
                key, Line(line.op, "", line.dtype, line.where, line.through, line.code, line.stack)
            )
            groups.setdefault(key, set()).add(members)
            whole.calls += line.calls
            whole.payload_bytes += line.payload_bytes
            whole.sent_bytes += line.sent_bytes
            whole.ring_bytes += line.ring_bytes
        for kind, whole in summed.items():
            whole.group = f"{kind[1]} {_members(groups[kind])}"
        return sorted(summed.values(), key=lambda line: (-line.sent_bytes, -line.payload_bytes, line.op))

    @property
    def not_counted(self) -> dict[str, int]:
        """Operators that could only be named, with their calls on all ranks."""
        calls: Counter[str] = Counter()
        for rank in self.ranks:
            calls.update(rank.not_counted)
        return dict(calls)

    def table(self, shown: int | None = None) -> str:
        """The lines (``shown`` of them at most), their sums, how ranks differ, and what was not seen to its end."""
        if not self.ranks:
            return "\n".join(["no process of this program became a rank in which it was counted", *self.troubles])
        who = _count(len({(rank.host, rank.rank) for rank in self.ranks}), "rank")
        parts = [table(self.lines, None, self.not_counted, who, shown), *_spread(self.ranks), *_cut_short(self.ranks)]
        return "\n".join([*parts, *self.troubles])

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values: the sums as ``lines``, and each rank with its own."""
        return {
            "command": list(self.command),
            "exit_code": self.exit_code,
            "sent_bytes": sum(rank.sent_bytes for rank in self.ranks),
            "lines": [asdict(line) for line in self.lines],
            "not_counted": self.not_counted,
            "ranks": [asdict(rank) | {"sent_bytes": rank.sent_bytes} for rank in self.ranks],
            "troubles": list(self.troubles),
        }


def _size(members: str) -> int:
    """How many ranks ``0,2`` or ``0-3`` are."""
    first, dash, last = members.partition("-")
    return int(last) - int(first) + 1 if dash else members.count(",") + 1


def _members(groups: set[str]) -> str:
    """Which ranks the groups have; how many groups of how many, where they are many."""
    if len(groups) > _FEW:
        return f"{len(groups)} x {_size(next(iter(groups)))}"
    return " ".join(sorted(groups, key=lambda members: (len(members), members)))


def _spread(ranks: Sequence[RankCounts]) -> list[str]:
    """Which rank sent most, and which least; nothing where all sent the same."""
    most, least = max(ranks, key=lambda r: r.sent_bytes), min(ranks, key=lambda r: r.sent_bytes)
    if most.sent_bytes == least.sent_bytes:
        return []
    return [
        f"rank {most.rank} sent most, {most.sent_bytes / 1e6:.3f} MB; "
        f"rank {least.rank} least, {least.sent_bytes / 1e6:.3f} MB"
    ]


def _cut_short(ranks: Sequence[RankCounts]) -> list[str]:
    said = []
    twice = [rank for rank, times in Counter(rank.rank for rank in ranks).items() if times > 1]
    if twice:
        said.append(f"started more than once, and counted together: {_named(twice)}")
    if early := sorted({rank.rank for rank in ranks if not rank.has_ended and rank.trouble is None}):
        how = "killed, by os._exit, or not yet"
        said.append(f"did not end as Python ends ({how}), and was counted until then: {_named(early)}")
    return said + [f"rank {rank.rank} stopped counting: {rank.trouble}" for rank in ranks if rank.trouble]


def _named(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")
