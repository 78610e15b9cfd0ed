"""What is said of each parameter, where it is known; and that parameters add up to what is said of the whole."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from comm_compress.core.rounds import AllGatherRounds, ReduceScatterRounds
from comm_compress.core.segments import flatten, segments_of
from comm_compress.core.state import State
from comm_compress.methods.identity import Identity, IdentityConfig
from experiments.fidelity import adam_updates, outliers_and_errors
from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from experiments.fidelity.captured import Unit
from experiments.fidelity.outliers_and_errors import Line, measure, of_all_layers

WORLD, STEPS = 3, 4
SHAPES = [("layers.0.w", (5, 4)), ("layers.0.b", (5,)), ("layers.1.w", (5, 4)), ("layers.1.b", (5,)), ("still", (2, 2))]
SEGMENTS = segments_of(SHAPES, WORLD)
GENERATOR = torch.Generator()


def tensors(scale: float = 1.0) -> list[Tensor]:
    """One step's: everything random but `still`, which is all ones."""
    return [scale * torch.randn(shape, generator=GENERATOR) for _, shape in SHAPES[:-1]] + [torch.ones(2, 2)]


def units(kind: str) -> list[Unit]:
    GENERATOR.manual_seed(0)
    if kind == GRADIENTS:
        return [Unit("u", SEGMENTS, [[flatten(tensors(), WORLD) for _ in range(WORLD)] for _ in range(STEPS)])]
    rows = [flatten(tensors(), WORLD)]
    rows += [rows[0] + step * 0.01 * flatten([*tensors()[:-1], torch.zeros(2, 2)], WORLD) for step in range(1, STEPS)]
    return [Unit("u", SEGMENTS, [list(row) for row in rows])]


@pytest.fixture(params=[GRADIENTS, PARAMETERS])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(outliers_and_errors, "load", lambda _, kind: units(kind))
    return str(request.param)


def lines(kind: str, *methods: str) -> dict[str, Line]:
    return {line.parameter: line for line in measure(Path(), kind, methods)}


def test_all_layers_have_one_name() -> None:
    assert of_all_layers("model.layers.11.mlp.up_proj.weight") == "model.layers.mlp.up_proj.weight"
    assert of_all_layers("h2.3.w") == "h2.w"


def test_layers_are_taken_together(kind: str) -> None:
    found = lines(kind, "identity")
    assert {name: (line.tensors, line.elements) for name, line in found.items()} == {
        "layers.w": (2, 40),
        "layers.b": (2, 10),
        "still": (1, 4),
    }
    assert sum(line.share for line in found.values()) == pytest.approx(1)
    assert found["layers.w"].errors == {"identity": pytest.approx(0, abs=1e-6)}
    assert (found["layers.b"].rows, found["layers.b"].columns) == (None, None)
    still = found["still"]
    assert (still.largest, still.rows, still.columns) == (1, 1, 1), "all its elements are alike"


def test_what_was_not_updated_has_no_error_in_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outliers_and_errors, "load", lambda _, kind: units(kind))
    assert lines(PARAMETERS, "int4")["still"].errors == {"int4": None}
    assert lines(PARAMETERS, "int4")["layers.w"].errors["int4"] not in (None, 0)


def test_outliers_are_those_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row three times, a column five times as long as the others, which are alike; one rank has none of it."""
    matrix = torch.ones(7, 9)
    matrix[2] *= 3
    there, nothing = ([x] for x in (matrix, torch.zeros(7, 9)))
    segments = segments_of([("w", (7, 9))], 2)
    given = [Unit("u", segments, [[flatten(there, 2), flatten(nothing, 2)]])]
    monkeypatch.setattr(outliers_and_errors, "load", lambda *_: given)
    (line,) = measure(Path(), GRADIENTS, [])
    assert [line.rows, line.columns] == pytest.approx([3, 1])
    assert line.largest == pytest.approx(3 / math.sqrt((6 + 9) / 7))
    matrix[:, 1] *= 5
    given[0] = Unit("u", segments, [[flatten(there, 2), flatten(nothing, 2)]])
    (line,) = measure(Path(), GRADIENTS, [])
    assert [line.rows, line.columns] == pytest.approx([3, 5])


class SpoilsB(Identity):
    """Sends twice the elements of the parameters `b`, and everything else as it is."""

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """As identity, of spoilt rows."""
        return (yield from super().reduce_scatter(self.spoilt(rows, state), state))

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """As identity, of a spoilt row."""
        return (yield from super().all_gather(self.spoilt(row, state), state))

    @staticmethod
    def spoilt(flat: Tensor, state: State) -> Tensor:
        flat = flat.clone()
        for s in state.segments:
            if s.name.endswith(".b"):
                flat[..., s.start : s.stop] *= 2
        return flat


def test_an_error_is_found_in_the_parameter_that_has_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outliers_and_errors, "_made", lambda method: SpoilsB(IdentityConfig()))
    found = lines(kind, "spoils")
    assert found["layers.w"].errors["spoils"] == pytest.approx(0, abs=1e-6)
    error = found["layers.b"].errors["spoils"]
    if kind == GRADIENTS:
        assert error == pytest.approx(1), "twice is once too much"
    else:
        last, before = (torch.cat(units(kind)[0].steps[t]) for t in (-1, -2))
        in_b = torch.cat([torch.arange(s.start, s.stop) for s in SEGMENTS if s.name.endswith(".b")])
        last, before = (x.view(WORLD, -1)[:, in_b] for x in (last, before))
        assert error == pytest.approx(float(last.norm() / (last - before).norm()))


@pytest.mark.parametrize("method", ["int4", "topk ratio=0.2", "ecsq step=0.5"])
def test_parameters_add_up_to_the_whole(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four steps or fewer `update_error` judges the last one, too."""
    monkeypatch.setattr(outliers_and_errors, "load", lambda _, kind: units(kind))
    name, *settings = method.split()
    config = {key: float(value) if "." in value else int(value) for key, value in (s.split("=") for s in settings)}
    whole = adam_updates.measure(GRADIENTS, name, config, units(GRADIENTS))
    found = lines(GRADIENTS, method).values()
    assert whole.gradient_error is not None
    assert whole.gradient_error > 0.01
    of_parameters = math.sqrt(sum(line.share * (line.errors[method] or 0) ** 2 for line in found))
    assert of_parameters == pytest.approx(whole.gradient_error, rel=1e-5)


def test_gradients_of_zeros_have_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.zeros(2, 6)
    unit = Unit("u", segments_of([("w", (4, 3))], 2), [[rows, rows]])
    monkeypatch.setattr(outliers_and_errors, "load", lambda *_: [unit])
    (line,) = measure(Path(), GRADIENTS, ["int4"])
    assert (line.share, line.largest, line.rows, line.errors) == (0, None, None, {"int4": None})


def test_one_step_shows_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        outliers_and_errors, "load", lambda *_: [u._replace(steps=u.steps[:1]) for u in units(PARAMETERS)]
    )
    with pytest.raises(ValueError, match="capture two or more"):
        measure(Path(), PARAMETERS, ["delta"])


def test_none_sends_what_torch_sends(kind: str) -> None:
    with pytest.raises(ValueError, match="choose a method"):
        measure(Path(), kind, ["none"])
