"""Perplexity of a saved model, on one process.

    python -m fsdp_lab.validate --model_dir fsdp_output/runs/NAME/final_model

Without other flags it reads the settings of the run beside the model, so that it reproduces that run's PPL.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fsdp_lab.data import (
    WIKI_LEADS,
    JoinedDataset,
    load_tokenizer,
    open_sources,
    tokenize,
    validation_batches,
    validation_sequences,
)
from fsdp_lab.data.batches.loader import SequenceDataset
from fsdp_lab.data.batches.masked.dataset import Masking
from fsdp_lab.data.opening import conversations, sequences
from fsdp_lab.files.user_cache import cache_dir
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.models.saved.tokenizers import check_ids
from fsdp_lab.settings.conflicts.all_groups import check_data
from fsdp_lab.settings.models.masked import folder_is_masked
from fsdp_lab.settings.models.saved import ValidateConfig
from fsdp_lab.settings.reading.cli import given_by
from fsdp_lab.settings.reading.strict import read_yaml
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_endings, user_errors
from fsdp_lab.training.evaluate import Evaluation, summed_loss

PROGRAM = "fsdp_lab.validate"
_TEXT = {"data_path", "data_format", "data_mix"}


def validate(config: ValidateConfig) -> Evaluation:
    """Loss of the model on the validation split of the data. Raises ValueError for unusable paths."""
    if config.validate.model_dir is None:
        raise ValueError("model_dir: missing; give the folder of a saved model")
    folder = Path(config.validate.model_dir)
    model = objective(load_pretrained(folder, config.validate.trust_pickle)).eval()
    check_data(config.data)
    tokenizer, cache, fraction = load_tokenizer(folder), cache_dir(config.data.cache_dir), config.data.val_fraction
    check_ids([tokenizer.vocab_size - 1], model.hf.config.vocab_size, "model_dir")
    length = config.data.max_length or min(512, int(model.hf.config.max_position_embeddings))
    masking = Masking.of(tokenizer) if folder_is_masked(folder) else None
    if masking is not None and config.data.data_mix:
        raise ValueError("data_mix: a masked model takes its pairs of segments from one text; give data_path")
    dataset: SequenceDataset | JoinedDataset
    if config.data.data_format == "conversations":
        _, dataset, _ = conversations(Path(str(config.data.data_path)), folder, length, fraction)
    elif config.data.data_mix:
        tokenised = partial(tokenize, tokenizer=tokenizer, cache_dir=cache, val_fraction=fraction)
        sources = open_sources(config.data.data_mix, tokenizer, fraction, lambda _, path: tokenised(path))
        dataset = validation_sequences(sources, length)
    else:
        path = Path(config.data.data_path) if config.data.data_path else WIKI_LEADS
        dataset = sequences(tokenize(path, tokenizer, cache, val_fraction=fraction), "val", length, masking)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = validation_batches(dataset, config.validate.batch_size, rank=0, world_size=1)
    return Evaluation.of(summed_loss(model.to(device), batches, device))


def of_the_run(config: ValidateConfig, argv: list[str]) -> ValidateConfig:
    """``config`` with the data settings of the run that saved the model, where the command line gave none."""
    folder = Path(config.validate.model_dir or "")
    settings = folder.parent / "config.yaml"
    if not settings.is_file():
        return config
    try:
        saved = read_yaml(settings)
    except ValueError as error:
        raise ValueError(f"model_dir: {settings}, of the run that saved the model: {error}") from None
    if not isinstance(saved, dict):
        raise ValueError(f"model_dir: {settings}, of the run that saved the model: holds no settings")
    given = given_by(ValidateConfig, argv, PROGRAM).keys()
    text = () if given & _TEXT else _TEXT
    names = (*text, *({"max_length", "val_fraction"} - given))
    from_run = {name: saved[name] for name in names if name in saved}  # an older run knows no data_mix
    return replace(config, data=replace(config.data, **from_run))


def main(argv: list[str]) -> int:
    """Print loss and PPL; returns the exit code."""
    with user_errors(PROGRAM):
        config = of_the_run(checked(ValidateConfig, argv, PROGRAM), argv)
        result = validate(config)
        print(
            f"validation loss {result.loss:.4f}, PPL {result.ppl:.2f} over {result.tokens:,} tokens, "
            f"top-1 accuracy {100 * result.accuracy:.2f} %"
        )
        if result.pair_loss is not None and result.pair_accuracy is not None:
            print(f"next sentence: loss {result.pair_loss:.4f}, {100 * result.pair_accuracy:.1f} % told rightly")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
