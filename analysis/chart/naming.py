"""What to call an arm on the chart: what moves the weights, then what is sent by which method, then how often.

    none, optimizer dct, by demo, 2 replicas                  demo dct
    none, every 30 diloco topk ratio=0.02, 2 replicas         every 30 diloco topk ratio=0.02
    none, every 30 diloco, outer_by_gradient=embeddings       every 30 diloco, embeddings by gradient
    none, every 30 diloco int8 layers(*wte*="powersgd rank=9"), outer_by_gradient=embeddings
                                                              every 30 diloco int8, embeddings by powersgd
    none, every 30 local_sgd int8, outer_by_gradient=all, outer_gradient_every=5       gradients of 5 steps int8
    int4 hadamard + delta, optimizer int4, by muon            muon int4, int4 hadamard + delta
    powersgd rank=4, 2 replicas                               powersgd rank=4, 2 replicas

A label has all that a flag would need. Here thirty of them share one figure, and most say "none" of gradients that are
not sent, and how many replicas there are of an optimizer, or of local steps, that are nothing without replicas.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.rows.comparing.arms import PLAIN, Arm
from analysis.rows.comparing.comparisons import Comparison
from analysis.statistics import names
from comm_compress.labels import Method, label, parse_label

LONGEST = 36  # letters
_Kept = frozenset[str] | None
_NO_SETTINGS: _Kept = frozenset()
_OUTER_STEP = {"outer_learning_rate": "rate", "outer_momentum": "momentum"}
_GRADIENT_METHOD = "outer_gradient_compress"
_GATHER, _BY_GRADIENT, _GRADIENT_EVERY = "optimizer_gather", "outer_by_gradient", "outer_gradient_every"


def named(comparison: Comparison, longest: int = LONGEST) -> Comparison:
    """The same comparison, in which arms have a short name that are moved by another optimizer, take local steps, or
    keep several copies of the weights.

    It is the first of these that no other arm may have and that has at most ``longest`` letters: with all settings of
    the methods, or with their names alone. Where there is none, the names with those settings in which such arms
    differ, however long; where that is none, the shortest one, numbered from the second arm on."""
    arms = sorted({runs.arm for runs in comparison.arms}, key=lambda arm: arm.label)
    told = [arm for arm in arms if _is_told(arm)]
    candidates = {arm: list(dict.fromkeys((_brief(arm, None), _brief(arm, _NO_SETTINGS)))) for arm in told}
    said = Counter(itertools.chain.from_iterable(candidates.values()))
    said.update(arm.label for arm in arms if arm not in candidates)
    chosen: dict[Arm, str] = {}
    for arm, texts in candidates.items():
        alone = (text for text in texts if said[text] == 1 and len(text) <= longest)
        differing = _brief(arm, _differing([one for one in told if candidates[one][-1] == texts[-1]]))
        numbered = (f"{texts[-1]} no. {number}" for number in itertools.count(2))
        rest = itertools.chain([differing] if differing != texts[0] else [], texts[-1:], numbered)
        chosen[arm] = next(itertools.chain(alone, (text for text in rest if text not in _taken(arms, chosen))))
    return names.renamed(comparison, chosen)


def _differing(arms: Sequence[Arm]) -> frozenset[str]:
    """The settings of methods in which these arms differ."""
    said: list[dict[tuple[int, str], str]] = []
    for arm in arms:
        back = json.loads(dict(arm.further).get(_GATHER, '"none"'))
        methods = [parse_label(text) for text in (arm.outer_method, arm.outer_gather, arm.optimizer, back)]
        said.append({(i, name): repr(value) for i, one in enumerate(methods) for name, value in one.settings.items()})
    keys = {key for one in said for key in one}
    return frozenset(key[1] for key in keys if len({one.get(key) for one in said}) > 1)


def _taken(arms: list[Arm], chosen: Mapping[Arm, str]) -> set[str]:
    return {*chosen.values(), *(arm.label for arm in arms if not _is_told(arm))}


def _is_told(arm: Arm) -> bool:
    return bool(arm.training) or arm.takes_local_steps or arm.compresses_optimizer


def _brief(arm: Arm, kept: _Kept) -> str:
    """The arm's short name. ``kept``: the settings of its methods that it has; None: all."""
    moved, sent = _moved(arm, kept), _sent(arm, kept)
    parts = [*([moved] if moved else []), *([sent] if sent != "none" or not moved else [])]
    copies = json.loads(dict(arm.training).get("dp_replicas", "1"))
    needs_replicas = arm.takes_local_steps or arm.moved_by not in ("adamw", "muon")
    return ", ".join([*parts, *([f"{copies} replicas"] if copies != 1 and not needs_replicas else [])])


def _moved(arm: Arm, kept: _Kept) -> str:
    """Which optimizer, by which methods what it exchanges goes there and back, and what else is said of that; empty:
    AdamW, which exchanges nothing."""
    own = {name: json.loads(text) for name, text in arm.training if name not in ("optimizer", "dp_replicas")}
    text = label(arm.moved_by, own) if own or arm.moved_by != "adamw" else ""
    if arm.optimizer not in PLAIN:
        text = f"{text} {_method(arm.optimizer, kept)}"
    further = {name: str(json.loads(value)) for name, value in arm.further if name.startswith("optimizer_")}
    back = further.pop(_GATHER, "none")
    text = " ".join([text, *(["+", _method(back, kept)] if back not in PLAIN else []), *further.values()])
    return text.strip()


def _sent(arm: Arm, kept: _Kept) -> str:
    """The arm's label without its optimizer, and without gradients that nobody speaks of."""
    kind = json.loads(dict(arm.further).get(_BY_GRADIENT, '"none"'))
    apart = {_BY_GRADIENT, _GRADIENT_METHOD, *_OUTER_STEP}
    rest = tuple(pair for pair in arm.further if not pair[0].startswith("optimizer_") and pair[0] not in apart)
    others = replace(arm, optimizer="none", training=(), further=rest, name=None)
    steps = json.loads(dict(rest).get(_GRADIENT_EVERY, "null"))
    if kind == "all" and steps:  # nothing takes local steps: what is exchanged is gradients, so often
        others = replace(others, outer_every=steps, further=tuple(pair for pair in rest if pair[0] != _GRADIENT_EVERY))
    if kept is not None:
        there, back = _method(arm.outer_method, kept), _method(arm.outer_gather, kept)
        others = replace(others, gradient_settings="{}", parameter_settings="{}", further=())
        others = replace(others, outer_method=there, outer_gather=back)
    text = others.label.removeprefix("none, ")
    if kind == "all":
        of = "gradients of each step" if others.outer_every == 1 else f"gradients of {others.outer_every} steps"
        return text.replace(f"every {others.outer_every} {arm.outer}", of, 1)
    text = text.replace(f" {arm.outer}", f" {arm.outer}{_outer_step(arm)}", 1)
    return text + (f", {kind} by {_apart(arm, kept)}" if kind != "none" else "")


def _apart(arm: Arm, kept: _Kept) -> str:
    """How gradients of what does not go by local steps are sent: by a method of their own, or the one that the outer
    method has for some layers, where the name does not have its settings. Else the word for what they are."""
    if own := json.loads(dict(arm.further).get(_GRADIENT_METHOD, "null")):
        return _method(own, kept)
    layers = parse_label(arm.outer_method).settings.get("layers") or {}
    of_layers = {_parsed(method).name for method in layers.values()}
    return of_layers.pop() if len(of_layers) == 1 and kept is not None and "layers" not in kept else "gradient"


def _parsed(method: Any) -> Method:
    """A method of ``layers``, as a label or spelled out."""
    return parse_label(method) if isinstance(method, str) else Method(method["method"], {})


def _outer_step(arm: Arm) -> str:
    """What the outer step has instead of its kind's rate and momentum: ``(1, 0.3)``, or ``(momentum 0.6)``."""
    values = dict(arm.further)
    said = {word: f"{json.loads(values[name]):g}" for name, word in _OUTER_STEP.items() if name in values}
    numbers = list(said.values()) if len(said) == len(_OUTER_STEP) else [f"{word} {said[word]}" for word in said]
    return f"({', '.join(numbers)})" if said else ""


def _method(text: str, kept: _Kept) -> str:
    if kept is None or text in PLAIN:
        return text
    said = parse_label(text)
    return label(said.name, {name: value for name, value in said.settings.items() if name in kept})
