"""What rank 0 shows while it trains."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fsdp_lab.progress import Progress


def steps_seen(folder: Path, name: str) -> list[int]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [scalar.step for scalar in events.Scalars(name)]


def test_a_resumed_run_goes_on_with_its_events_also_with_those_of_the_old_place(tmp_path: Path) -> None:
    """Before they had a folder of their own they lay beside it, and what came after the checkpoint is forgotten."""
    events = tmp_path / "logs" / "run" / "tensorboard"
    first = Progress(6, True, events)
    for step in (1, 2, 3, 4):
        first.record(step, {"train/loss": 1.0})
    first.close()
    for path in events.iterdir():
        path.rename(events.parent / path.name)
    second = Progress(6, True, events, done=3)
    for step in (4, 5, 6):
        second.record(step, {"train/loss": 1.0})
    second.close()
    assert steps_seen(events, "train/loss") == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in events.parent.iterdir()] == ["tensorboard"]
