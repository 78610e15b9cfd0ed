"""The shapes of what `describe` and `describe_common` return. Without torch: who reads a file of them needs none."""

from __future__ import annotations

from typing import Any, TypedDict


class Setting(TypedDict):
    """One setting of a method. All values are JSON values.

    ``type``: what may be given, in words ("a whole number or null"). ``default``: the value when it is left out.
    ``limits``: what the value must be beyond its type, in the words of the refusal; empty where every value will do.
    ``meaning``: what it does, in which names of settings stand between two backquotes, of other things between one.
    ``example``: a label that can be typed, in which this setting has another value than by default; empty: none found.
    """

    name: str
    type: str
    default: Any
    limits: str
    meaning: str
    example: str


class Description(TypedDict):
    """One method. All values are JSON values.

    ``module``: where it is defined; empty for `none`. ``idea``: what it does, the first paragraph of its docstring.
    ``details``: the paragraphs after it, as they are written (formulas are indented). ``source``: authors, title, where
    and when, or empty; ``arxiv``: the identifiers in it, such as "1809.07599".

    ``gradients``, ``parameters``, ``changes``: which directions it is for by default: reduce-scatters, all-gathers,
    and the changes of parameters that `delta` sends. ``error_feedback``: is it on unless told otherwise?
    ``no_feedback``: why it makes no sense around this method; empty where it does. ``unbiased``, ``lossless``:
    by default. ``settings``: its own, in their order; those that all methods share are `describe_common`'s.
    """

    name: str
    module: str
    idea: str
    details: str
    source: str
    arxiv: list[str]
    gradients: bool
    parameters: bool
    changes: bool
    error_feedback: bool
    no_feedback: str
    unbiased: bool
    lossless: bool
    settings: list[Setting]


class Common(TypedDict):
    """What can be put around methods: ``settings`` that all of them take, and those of ``error_feedback``."""

    settings: list[Setting]
    error_feedback: list[Setting]
