"""How methods are written in one line, and read again: ``topk ratio=0.01``, ``int4 hadamard + delta``.

    arm     = method ["+" method] {"," further}        gradients, then parameters
    method  = name {setting}  |  a JSON object such as {"method": "topk", "ratio": 0.01}
    setting = name  |  "no" name                       true, false
            | name "=" value
            | name "(" [method's name] {setting} ")"   settings inside a setting
    value   = number | true | false | null | word | a JSON string, list or object
    further = "reduced in" dtype | "prefetch" number | "no reshard"
            | "activations" method ["+" method]        activations, then their gradients (tensor and pipeline parallel)
            | "every" number name [method ["+" method]]   local steps: how many, their kind; what is sent, and its mean
            | "optimizer" method                  what an optimizer gathers that needs whole matrices (Muon)

``feedback`` stands for ``error_feedback``. A name or word that could be read as something else is a JSON string,
in double quotes. What `label` and `arm_label` write, `parse_label` and `parse_arm` read back as it was. Nothing here
knows which methods there are (`comm_compress.registry` does), and nothing imports torch: figures and command lines
are to be quick.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

_SHORT = {"error_feedback": "feedback"}
_LONG = {short: long for long, short in _SHORT.items()}
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_WORD = r"[^\s()=,+\"]+"
_TOKEN = re.compile(
    rf'(?P<json>"(?:[^"\\]|\\.)*")|(?P<number>{_NUMBER})(?![^\s()=,+"])|(?P<mark>[()=,+])|(?P<word>{_WORD})'
)
_IS_NUMBER, _IS_WORD = re.compile(_NUMBER), re.compile(_WORD)
EXAMPLE = "a method is written like topk, topk ratio=0.01 or int4 hadamard"


class Method(NamedTuple):
    """A method's registered name and its settings, JSON values by name."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """How communication is done, in both directions. None: the text does not say.

    ``reduced_in``: the dtype of FSDP2's sum; ``prefetch``: units gathered ahead; ``reshard``: after forward;
    ``activations``, ``activation_gradients``: the labels of the methods that carry these between
    a divided model's ranks. ``outer``: the kind of local steps; ``outer_every``: how many between two synchronisations;
    ``outer_method``, ``outer_gather``: the labels of the methods that carry what replicas have learnt, and its mean.
    ``optimizer``: the label of the method that carries what the optimizer gathers.
    """

    gradients: Method
    parameters: Method | None = None
    reduced_in: str | None = None
    prefetch: int | None = None
    reshard: bool | None = None
    activations: str | None = None
    activation_gradients: str | None = None
    outer: str | None = None
    outer_every: int | None = None
    outer_method: str | None = None
    outer_gather: str | None = None
    optimizer: str | None = None


def label(name: str, settings: Mapping[str, Any] | None = None) -> str:
    """Write a method and its settings in their order: ``topk ratio=0.01 no feedback``."""
    return " ".join([_name(name), *(_setting(key, value) for key, value in (settings or {}).items())])


def arm_label(
    gradients: str,
    parameters: str = "none",
    *,
    reduced_in: str = "fp32",
    prefetch: int = 1,
    reshard: bool = True,
    activations: str = "none",
    activation_gradients: str = "none",
    outer: str = "none",
    outer_every: int = 30,
    outer_method: str = "none",
    outer_gather: str = "none",
    optimizer: str = "none",
) -> str:
    """Write all directions' labels as one: ``int4 hadamard + delta, reduced in bf16``, ``none, activations int8``,
    ``none, every 30 diloco int4 hadamard``.

    What is as by default is not said: parameters that are not compressed, float32, one unit gathered ahead.
    """
    parts = [_pair(gradients, parameters)]
    parts += [f"reduced in {_name(reduced_in)}"] if reduced_in != "fp32" else []
    parts += [f"prefetch {prefetch}"] if prefetch != 1 else []
    parts += ["no reshard"] * (not reshard)
    both = _pair(activations, activation_gradients)
    parts += [f"activations {both}"] * (both != "none")
    if outer != "none":
        sent = _pair(outer_method, outer_gather)
        parts.append(f"every {outer_every} {_name(outer)}" + (f" {sent}" if sent != "none" else ""))
    parts += [f"optimizer {optimizer}"] * (optimizer != "none")
    return ", ".join(parts)


def trained_label(arm: str, training: Mapping[str, Any]) -> str:
    """Write an arm's label with what moves its weights: ``none, by muon``, ``none, every 30 diloco, 2 replicas``.

    ``training``: settings by name. What is as by default is not said: AdamW (``optimizer``), and one copy of the
    weights that all ranks share (``dp_replicas``); other settings are the optimizer's own. For figures and plans that
    have arms of several optimizers: no flag reads it back.
    """
    own = {name: value for name, value in training.items() if name not in ("optimizer", "dp_replicas")}
    optimizer, replicas = training.get("optimizer", "adamw"), training.get("dp_replicas", 1)
    parts = [arm, *([f"by {label(optimizer, own)}"] if optimizer != "adamw" or own else [])]
    return ", ".join([*parts, *([f"{replicas} replicas"] if replicas != 1 else [])])


def _pair(one: str, other: str) -> str:
    return one if other == "none" else f"{one} + {other}"


def parse_label(text: str) -> Method:
    """The method that ``text`` names, and its settings. ValueError says what cannot be read, or that there are two."""
    arm = parse_arm(text)
    if arm.parameters is not None:
        raise ValueError(f"{text!r}: two methods (gradients + parameters), where one is wanted")
    if arm != Arm(arm.gradients):
        raise ValueError(f"{text!r}: what follows the comma is no method's setting; {EXAMPLE}")
    return arm.gradients


def parse_arm(text: str) -> Arm:
    """Return what ``text`` says of both directions. ValueError says what cannot be read, and where."""
    return _Reader(text).arm()


def named(method: Mapping[str, Any]) -> Method:
    """That of a mapping such as ``{"method": "topk", "ratio": 0.01}``, whose method may be a label with settings of
    its own. ValueError: there is none, or a setting is said twice with two values."""
    text = method.get("method")
    if not isinstance(text, str):
        raise ValueError(f"{dict(method)!r}: needs a 'method', and its name")
    return with_settings(parse_label(text), {key: value for key, value in method.items() if key != "method"})


def with_settings(method: Method, further: Mapping[str, Any]) -> Method:
    """Return ``method`` with ``further`` settings. ValueError: it says one of them itself, with another value."""
    settings = dict(method.settings)
    for key, value in further.items():
        if key in settings and settings[key] != value:
            raise ValueError(f"{method.name}: {key} is said twice, as {settings[key]!r} and as {value!r}")
        settings[key] = value
    return Method(method.name, settings)


def spelled_out(value: Any) -> Any:
    """Return a setting with a mapping in place of every label in it: ``"qsgd bits=4"`` is a method with settings.

    No setting's own values are texts of several words. Raises ValueError for such a text that is no label.
    """
    if isinstance(value, Mapping):
        return {key: spelled_out(item) for key, item in value.items()}
    if not isinstance(value, str) or len(value.split()) < 2:
        return value
    name, settings = parse_label(value)
    return {"method": name, **settings}


def _setting(key: str, value: Any, first: bool = False) -> str:
    """Write one setting; ``first``: a lone name here would be read as a method's."""
    name = _SHORT.get(key) or _name(key)
    if value is True and not first:
        return name
    if value is False:
        return f"no {name}"
    if isinstance(value, Mapping):
        return f"{name}({_inside(value)})"
    return f"{name}={_value(value)}"


def _inside(settings: Mapping[str, Any]) -> str:
    method = settings.get("method")
    names = [_name(method)] if isinstance(method, str) else []
    others = [(key, value) for key, value in settings.items() if not (names and key == "method")]
    first = not names
    return " ".join(names + [_setting(key, value, first and i == 0) for i, (key, value) in enumerate(others)])


def _value(value: Any) -> str:
    if isinstance(value, str):
        bare = _IS_WORD.fullmatch(value) and not _IS_NUMBER.fullmatch(value) and value not in _CONSTANTS
        return value if bare and value[0] not in "[{" else json.dumps(value)
    return json.dumps(value)


def _name(name: str) -> str:
    """As it is, or quoted where it would be read as a number, as "no", as several words, or as an object of JSON."""
    bare = _IS_WORD.fullmatch(name) and not _IS_NUMBER.fullmatch(name) and name != "no" and name not in _LONG
    return name if bare and name[0] != "{" else json.dumps(name)


class _Token(NamedTuple):
    """``kind``: word, number, json (a string, list or object) or mark; "" at the end. ``value``: what is meant."""

    kind: str
    text: str = ""
    value: Any = None


_END = _Token("")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_JSON = json.JSONDecoder(parse_constant=_refuse)


class _Reader:
    """Reads one text, token after token."""

    def __init__(self, text: str) -> None:
        self.text, self.number = text, 0
        self.tokens = [*self._tokens(), _END, _END]

    @property
    def now(self) -> _Token:
        """The token that is read next."""
        return self.tokens[self.number]

    def arm(self) -> Arm:
        """Read the whole text as an arm: methods of both directions, then what follows their commas."""
        gradients, parameters = self._methods("gradients + parameters")
        further: dict[str, Any] = {}
        while self._takes(","):
            for key, value in self._further():
                self._put(further, key, value)
        if self.now != _END:
            raise self._wrong(f"{self.now.text!r} is out of place")
        return Arm(gradients, parameters, **further)

    def _methods(self, directions: str) -> tuple[Method, Method | None]:
        """Read one method or two, of these two directions."""
        methods = [self._method()]
        while self._takes("+"):
            methods.append(self._method())
        if len(methods) > 2:
            raise self._wrong(f"{len(methods)} methods for two directions ({directions})")
        return methods[0], methods[1] if len(methods) > 1 else None

    def _method(self) -> Method:
        if isinstance(self.now.value, dict):
            name, settings = named(self._step().value)
            return Method(name, settings)
        return Method(self._word("a method's name"), self._settings())

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        while self.now != _END and not (self.now.kind == "mark" and self.now.text in "+,)"):
            self._put(settings, *self._setting())
        return settings

    def _setting(self) -> tuple[str, Any]:
        if self.now.kind == "number":
            raise self._wrong(f"{self.now.text} needs the name of a setting before it, as in ratio=0.01")
        if self.now == _Token("word", "no", "no"):
            self._step()
            return self._key(), False
        key = self._key()
        if self._takes("="):
            return key, self._value()
        return key, self._inside() if self._takes("(") else True

    def _key(self) -> str:
        is_bare = self.now.kind == "word"
        name = self._word("a setting's name")
        return _LONG.get(name, name) if is_bare else name

    def _value(self) -> Any:
        token = self._step()
        if token.kind in ("", "mark"):
            raise self._wrong("a value is missing" + (f" before {token.text!r}" if token.text else ""))
        return _CONSTANTS.get(token.text, token.value) if token.kind == "word" else token.value

    def _inside(self) -> dict[str, Any]:
        """Read what stands between parentheses: a method's name comes first and alone, settings follow."""
        settings: dict[str, Any] = {}
        after = self.tokens[self.number + 1]
        is_alone = after.kind != "mark" or after.text not in "=("
        if self.now.kind in ("word", "json") and self.now.text != "no" and is_alone:
            settings["method"] = self._word("a method's name")
        for key, value in self._settings().items():
            self._put(settings, key, value)
        if not self._takes(")"):
            raise self._wrong("a parenthesis is not closed")
        return settings

    def _further(self) -> list[tuple[str, Any]]:
        if self.now == _Token("word", "activations", "activations"):
            self._step()
            forward, backward = self._methods("activations + their gradients")
            said = [("activations", label(*forward))]
            return said if backward is None else [*said, ("activation_gradients", label(*backward))]
        if self.now == _Token("word", "every", "every"):
            return self._local_steps()
        if self.now == _Token("word", "optimizer", "optimizer"):
            self._step()
            return [("optimizer", label(*self._method()))]
        words = [self._step(), self._step()]
        match [words[0].text, words[1].text]:
            case ["reduced", "in"]:
                return [("reduced_in", self._word("a dtype"))]
            case ["prefetch", number] if number.isdecimal():
                return [("prefetch", int(number))]
            case ["no", "reshard"]:
                return [("reshard", False)]
        given = " ".join(word.text for word in words).strip()
        known = (
            "reduced in DTYPE, prefetch NUMBER, no reshard, activations METHOD, every NUMBER KIND METHOD and optimizer "
            "METHOD"
        )
        raise self._wrong(f"{given!r} stands after a comma, where only {known} can")

    def _local_steps(self) -> list[tuple[str, Any]]:
        """Read how many local steps there are, of which kind, and by which method replicas synchronise."""
        self._step()
        if not self.now.text.isdecimal():
            raise self._wrong(f"a number of steps is missing before {self.now.text!r}, as in every 30 diloco")
        said: list[tuple[str, Any]] = [("outer_every", int(self._step().text)), ("outer", self._word("what is done"))]
        is_last = self.now == _END or self.now == _Token("mark", ",", ",")
        if is_last:
            return said
        sent, back = self._methods("what replicas have learnt + its mean")
        said.append(("outer_method", label(*sent)))
        return said if back is None else [*said, ("outer_gather", label(*back))]

    def _word(self, wanted: str) -> str:
        if self.now.kind not in ("word", "json") or not isinstance(self.now.value, str):
            raise self._wrong(f"{wanted} is missing" + (f" before {self.now.text!r}" if self.now.text else ""))
        return str(self._step().value)

    def _takes(self, mark: str) -> bool:
        """Go past the next token if it is ``mark``, and tell whether it was."""
        is_next = self.now == _Token("mark", mark, mark)
        if is_next:
            self._step()
        return is_next

    def _step(self) -> _Token:
        """Go past the next token and return it."""
        token = self.now
        self.number = min(self.number + 1, len(self.tokens) - 1)
        return token

    def _put(self, settings: dict[str, Any], key: str, value: Any) -> None:
        if key in settings:
            raise self._wrong(f"{_SHORT.get(key, key).replace('_', ' ')} is said twice")
        settings[key] = value

    def _tokens(self) -> Iterator[_Token]:
        start, before = 0, ""
        while (start := len(self.text) - len(self.text[start:].lstrip())) < len(self.text):
            if (before == "=" and self.text[start] in "[{") or (before in ("", "+") and self.text[start] == "{"):
                value, end = self._json(start)
                yield _Token("json", self.text[start:end], value)
            else:
                token = _TOKEN.match(self.text, start)
                if token is None:
                    raise self._wrong(f"the string {self.text[start:]} has no end")
                end = token.end()
                yield self._token(str(token.lastgroup), token.group(), start)
            before, start = self.text[start], end

    def _token(self, kind: str, text: str, start: int) -> _Token:
        if kind == "json":
            return _Token(kind, text, self._json(start)[0])
        if kind != "number":
            return _Token(kind, text, text)
        value = int(text) if re.fullmatch("-?[0-9]+", text) else float(text)
        if math.isinf(value):
            raise self._wrong(f"{text} is too large for a number")
        return _Token(kind, text, value)

    def _json(self, start: int) -> tuple[Any, int]:
        try:
            return _JSON.raw_decode(self.text, start)
        except (ValueError, RecursionError):
            raise self._wrong(f"{self.text[start:]} does not begin with valid JSON") from None

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{self.text!r}: {what}; {EXAMPLE}")
