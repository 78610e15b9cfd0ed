"""Methods as text for a terminal: the list of all, and one with everything that is known of it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import comm_compress as cc
from fsdp_lab.commands.reference.methods_file import Method, Methods

_OPERATIONS = ("encode", "encode with feedback", "decode", "sum W=2", "all rounds", "all rounds with feedback")
_COLUMN = 18  # where the texts of settings begin


def as_list(content: Methods, width: int) -> Iterator[str]:
    """Two lines for each method: bits, directions, feedback and paper; its idea."""
    yield f"{'method':11} {'bits':>6}  {'carries':22}  {'feedback':8}  paper"
    for method in content["methods"]:
        feedback = "on" if method["error_feedback"] else "-" if method["no_feedback"] else "off"
        yield f"{method['name']:11} {method['bits']:6.4g}  {_directions(method):22}  {feedback:8}  {_paper(method)}"
        yield from _wrapped(" " * 20, method["idea"], width)
    yield ""
    others = ", ".join(method["name"] for method in content["methods"] if method["bits_on"] == "gauss")
    legend = (
        f"bits: of an element, by default; measured on gradients of gpt2-mini ({others}: on Gaussian numbers). "
        "feedback: is error feedback on unless told otherwise (-: it makes no sense there)? A method with all its "
        "settings: fsdp-lab methods topk"
    )
    yield from _wrapped("", legend, width)


def as_page(method: Method, content: Methods, width: int) -> Iterator[str]:
    """The lines about one method: settings with limits and examples, what it sends, its error, its speed."""
    yield from _wrapped("", f"{method['name']}: {method['idea']}", width)
    yield ""
    changes = ", changes of parameters (as values of delta)" if method["changes"] and not method["parameters"] else ""
    yield f"  carries     {_directions(method)}{changes}"
    yield f"  bits        {method['bits']:.4g} an element by default ({_measured_on(method)})"
    yield from _wrapped("  feedback    ", _feedback(method), width)
    yield from _wrapped("  source      ", method["source"] or "no paper", width)
    yield f"  try it      fsdp-lab train --comm_compress {_typed(method)}"
    if method["settings"]:
        yield "\nIts own settings:"
        yield from _settings(method["settings"], width)
    if method["name"] != "none":
        names = ", ".join(setting["name"] for setting in content["common"]["settings"])
        yield from _wrapped("\n", f"Beside these, as every method: {names} (fsdp-lab methods common).", width)
    yield from _fidelity(method, content)
    yield from _speed(method, content)


def common_page(common: cc.Common, width: int) -> Iterator[str]:
    """The settings that every method takes, and those of error feedback."""
    yield "Settings that every method takes beside its own:"
    yield from _settings(common["settings"], width)
    yield "\nSettings inside error_feedback, where it is on:"
    yield from _settings(common["error_feedback"], width)


def plain(text: str) -> str:
    """``text`` without its backquotes, for terminals."""
    return text.replace("`", "")


def _wrapped(head: str, text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width``, below each other; ``head`` begins the first."""
    below = " " * len(head.lstrip("\n"))
    return textwrap.wrap(
        plain(text), width, initial_indent=head, subsequent_indent=below, drop_whitespace=True, break_long_words=False
    )


def _directions(method: Method) -> str:
    return ", ".join(["gradients"] * method["gradients"] + ["parameters"] * method["parameters"])


def _measured_on(method: Method) -> str:
    if method["bits_on"] == "gradients":
        return "measured on gradients of gpt2-mini"
    if method["bits_on"] == "definition":
        return "in float32"
    return "measured on Gaussian numbers" if method["gradients"] else "measured on Gaussian changes of parameters"


def _feedback(method: Method) -> str:
    if method["error_feedback"]:
        return "error feedback is on, unless told otherwise (no feedback)"
    return f"none: {method['no_feedback']}" if method["no_feedback"] else "off, unless told otherwise (feedback)"


def _paper(method: Method) -> str:
    if method["arxiv"]:
        return f"arXiv {method['arxiv'][0]}"
    year = re.search(r"\b(?:19|20)\d\d\b", method["source"])
    return f"{method['source'].split()[0]}, {year[0]}" if year else "-"


def _typed(method: Method) -> str:
    """A label with a setting where the method has one; parameters' methods stand after a plus."""
    label = next((setting["example"] for setting in method["settings"]), method["name"])
    label = label if method["gradients"] else f"int8 + {label}"
    return f'"{label}"' if " " in label else label


def _settings(settings: Sequence[cc.Setting], width: int) -> Iterator[str]:
    for setting in settings:
        value, limits = setting["default"], setting["limits"]
        default = _as_label(value) if isinstance(value, dict) else json.dumps(value)
        limited = f", {limits}" if limits else ""
        head = f"  {setting['name']:{_COLUMN - 2}} "
        if len(head) > _COLUMN + 1:
            yield head.rstrip()
            head = " " * (_COLUMN + 1)
        yield from _wrapped(head, setting["meaning"], width)
        yield from _wrapped(" " * (_COLUMN + 1), f"{setting['type']}{limited}; by default {default}", width)
        yield f"{' ' * (_COLUMN + 1)}example: {setting['example']}"


def _as_label(method: dict[str, Any]) -> str:
    return cc.labels.label(*cc.labels.named(method))


def _fidelity(method: Method, content: Methods) -> Iterator[str]:
    rows = [row for row in method["fidelity"] if row["data"] == "gradients"]
    if not rows:
        return
    file = content["measured"]["fidelity"]
    yield f"\nWhat is sent and what arrives of gradients of gpt2-mini, without feedback ({file}):"
    width = max(len(row["label"]) for row in rows)
    yield f"  {'':{width}}  {'bits':>6}  {'NMSE':>8}  {'cosine':>7}"
    for row in rows:
        yield f"  {row['label']:{width}}  {row['bits']:6.4g}  {row['nmse']:8.3g}  {row['cosine']:7.4f}"
    yield "  (NMSE: the squared error over the squared size)"


def _speed(method: Method, content: Methods) -> Iterator[str]:
    if not method["speed"]:
        return
    measured = content["measured"]
    machine = f"{measured['mib']:.0f} MiB of float32, {measured['cores']} cores of an {measured['cpu']}"
    yield f"\nSpeed by default, GB of gradients a second ({machine}; {measured['speed']}):"
    yield f"  {'':24}  {'1 thread':>9} {'2 threads':>10}"
    for operation in _OPERATIONS:
        by_threads = {row["threads"]: row["gb_s"] for row in method["speed"] if row["operation"] == operation}
        if by_threads:
            one, two = (f"{by_threads[n]:.1f}" if n in by_threads else "-" for n in (1, 2))
            yield f"  {operation:24}  {one:>9} {two:>10}"
