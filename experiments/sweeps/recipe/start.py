"""The common start of a recipe's cells: a training that runs once, and whose weights all cells go on from.

start: {model: gpt2-mini, corpus: prose, max_steps: 2000, learning_rate: 0.002}
models:
  - {model_dir: start}
  - {start: {model: llama-mini}}     # a start of its own: what it says, and the rest as above

Two runs from fresh weights part soon, and what parts them may be the last bit of one number; two that go on from
trained weights part little. So a comparison of arms from a common start sees differences that chance hides from one
that begins with fresh weights (docs/comparing/statistics.md). It is a statement about going on, not about the whole
training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sweeps.recipe.complaints import checked_settings
from experiments.sweeps.recipe.corpora import corpus_settings
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.reading.specs import specs_of

WORD = "start"
"""What a recipe says in place of a folder: ``model_dir: start``."""
_RANKS = 2
_FOLDER = Path("fsdp_output/starts")
_ELSEWHERE = {
    **dict.fromkeys((spec.name for spec in specs_of(CommConfig)), "nothing is compressed on the way to the start"),
    **dict.fromkeys(("results_path", "curves_dir", "run_name", "output_dir", "save_model"), "the sweep sets it"),
    "data_path": "say it as corpus",
    "model_dir": "a start has fresh weights; say model",
}
_EXAMPLE = "{model: gpt2-mini, max_steps: 2000}"


@dataclass(frozen=True)
class Start:
    """``config`` trains it, on `processes` ranks; ``folder`` holds the weights then, and is named by all that affects
    them."""

    config: TrainConfig

    @property
    def folder(self) -> Path:
        """A folder for `from_pretrained`; it appears whole, when the training has ended."""
        return _FOLDER / f"{self.config.model.model}-{self.config.digest()[:8]}"

    @property
    def processes(self) -> int:
        """Two; one where it asks for virtual ranks, as on a machine with a single GPU."""
        return 1 if self.config.run.virtual_ranks else _RANKS

    @property
    def is_there(self) -> bool:
        """Has the training of the common start ended, so that cells can begin from it?"""
        return self.folder.is_dir()


def start_of(said: Any, complaints: list[str], where: str = WORD) -> Start | None:
    """The start that a recipe describes under the key ``where``; None where ``complaints`` say what is wrong."""
    if not isinstance(said, Mapping):
        complaints.append(f"{where}: got {said!r}, wants settings such as {_EXAMPLE}")
        return None
    before = len(complaints)
    own = {key: value for key, value in said.items() if key != "corpus"}
    specs = LANGUAGE_MODEL.config.specs()
    settings = checked_settings(where, own, specs, _ELSEWHERE, complaints)
    settings |= corpus_settings(said.get("corpus", "embedded"), complaints, f"{where}.corpus")
    complaints += [f"{where}.{key}: missing" for key in ("model", "max_steps") if key not in own]
    if len(complaints) > before:
        return None
    try:
        config = LANGUAGE_MODEL.complete(TrainConfig.of(**{"tensorboard": False, **settings}))
    except ConfigError as error:
        complaints += [f"{where}.{complaint}" for complaint in error.complaints]
        return None
    except ValueError as error:
        complaints.append(f"{where}: {error}")
        return None
    assert isinstance(config, TrainConfig)
    return Start(config)


def own_start(own: Any, common: Any) -> Any:
    """What a model's ``start`` says (``own``) over what the recipe's says (``common``, None: it has none)."""
    return {**common, **own} if isinstance(own, Mapping) and isinstance(common, Mapping) else own
