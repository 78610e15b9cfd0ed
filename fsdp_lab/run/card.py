"""The model card of what a run trained: README.md of its folder, as Hugging Face's hub shows it, from the results row.

Names and paths are a user's text, so they are written as code or quoted YAML and can neither be markup nor end the
part of the page they stand in. Of a path only its last part is said: cards are published, folders' names are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_lab.files.atomic import write_bytes
from fsdp_lab.settings.reading.strict import dump_yaml

NAME = "README.md"
EMBEDDED = "wiki-leads (embedded)"
_PATHS = ("data_path", "model_dir", "target_dir", "eval_data", "resume")
_ADAPTERS = """
The adapters are merged into these weights. They are also alone in the folder `adapter`, for
`peft.PeftModel.from_pretrained(BASE, "FOLDER/adapter")`, where BASE is the model that the training began with.
"""
_ATTRIBUTION = """\
The text is the opening paragraphs of articles of the English Wikipedia, by Wikipedia's contributors
(https://en.wikipedia.org), under [CC BY-SA 4.0](https://creativecommons.org/licenses/by-sa/4.0/); each article's
history names its authors. Modified: leads only, as plain text.
"""
_UNKNOWN_LICENCE = """\
The licence of the text is not known to the program that wrote this card. Before you publish the model, add `license:`
to the head of this file, and say here whose text it is.
"""


def write_card(folder: Path, row: Mapping[str, Any]) -> None:
    """Write README.md into ``folder``, whole or not at all. OSError where the disk does not take it."""
    write_bytes(folder / NAME, card(row).encode())


def card(row: Mapping[str, Any]) -> str:
    """The card of a run that went well, from its results ``row``: Markdown with a head of YAML."""
    head = dump_yaml(_head(row))
    title = f"# {_code(_last(row['model']))}, trained with {_code(row['compress_method'])} gradients"
    parts = [
        f"---\n{head}---\n",
        f"{title}\n",
        _introduction(row),
        f"## How to load it\n\n{_loading(row)}{_ADAPTERS if row.get('lora_rank') is not None else ''}",
        f"## What was measured\n\n{_measured(row)}",
        f"## Text\n\nTrained on {_code(_dataset(row))}.\n\n{_rights(row)}",
        f"## Limits\n\n{_limits(row)}",
        f"## Settings\n\nOf the run {_code(row['run_name'])}, those that affect the training:\n\n{_settings(row)}",
    ]
    return "\n".join(parts)


def _head(row: Mapping[str, Any]) -> dict[str, Any]:
    is_draft = row.get("draft_target") is not None
    tags = ["fsdp-comm-compress", "gradient-compression", f"gradients-{_line(row['compress_method'])}"]
    tags.append(f"parameters-{_line(row['param_compress_method'])}")
    task_name = "fill-mask" if _is_masked(row) else "text-generation"
    head: dict[str, Any] = {} if is_draft else {"library_name": "transformers", "pipeline_tag": task_name}
    head["tags"] = [*tags, *(("eagle3", "speculative-decoding") if is_draft else ())]
    if _is_embedded_alone(row):
        head |= {"language": "en", "license": "cc-by-sa-4.0"}
    measured = _metrics(row)
    if measured:
        head["metrics"] = [measured[0]["type"]]
        task = {"type": task_name}
        data = {"name": f"{_line(_dataset(row))}, held-out part", "type": "other"}
        results = [{"task": task, "dataset": data, "metrics": measured}]
        head["model-index"] = [{"name": _line(row["run_name"]), "results": results}]
    return head


def _metrics(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    if row.get("val_ppl") is not None:
        return [{"type": "perplexity", "value": row["val_ppl"], "name": "validation perplexity"}]
    if row.get("tau") is not None:
        return [{"type": "acceptance_length", "value": row["tau"], "name": "tokens a pass of the target"}]
    return []


def _introduction(row: Mapping[str, Any]) -> str:
    what = "A masked language model" if _is_masked(row) else "A language model"
    if row.get("draft_target") is not None:
        what = f"An EAGLE-3 draft for {_code(_last(row['draft_target']))}"
    start = row["config"].get("model_dir")
    begun = f", started from {_code(_last(start))}" if start and row.get("draft_target") is None else ""
    if row.get("lora_rank") is not None:
        begun += f", with LoRA adapters of rank {row['lora_rank']} ({row['trainable_parameters']:,} parameters)"
    alone = ""
    if row.get("outer") is not None:
        replicas = row.get("dp_replicas") or row["world_size"]
        alone = (
            f" {replicas} replicas trained by themselves and synchronised every {row['outer_every']} steps "
            f"({_code(row['outer'])}, by {_code(row['outer_method'])})."
        )
    played = ", all played by one process" if row.get("virtual_ranks") else ""
    return (
        f"{what} of {row['num_parameters']:,} parameters{begun}, trained for {row['steps']:,} steps on "
        f"{row['tokens_seen']:,} tokens under PyTorch FSDP2 on {row['world_size']} ranks{played}, with compressed "
        f"communication (fsdp-comm-compress): gradients by {_code(row['compress_method'])}, parameters by "
        f"{_code(row['param_compress_method'])} (`none`: not compressed).{alone} What was compressed is what ranks "
        "sent each other in training; the weights here are whole.\n"
    )


def _loading(row: Mapping[str, Any]) -> str:
    if row.get("draft_target") is not None:
        return (
            "It drafts for its target and says nothing by itself. The folder has the form that serving engines load as "
            "an EAGLE-3 draft beside the target.\n"
        )
    if _is_masked(row):
        return """\
```python
from transformers import AutoTokenizer, BertForPreTraining

model = BertForPreTraining.from_pretrained(FOLDER)  # this folder, or the name you published it under
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
```
"""
    return """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER)  # this folder, or the name you published it under
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
```
"""


def _measured(row: Mapping[str, Any]) -> str:
    steps = row["steps"]
    lines = [
        ("validation perplexity", _number(row.get("val_ppl"), ".2f")),
        ("validation loss, nats a token", _number(row.get("val_loss"), ".4f")),
        ("validation top-1 accuracy", _number(row.get("val_accuracy"), ".4f")),
        ("next-sentence accuracy", _number(row.get("val_next_sentence_accuracy"), ".4f")),
        ("next-sentence loss, nats a pair", _number(row.get("val_next_sentence_loss"), ".4f")),
        ("tokens of the validation", _number(row.get("val_tokens"), ",")),
        ("tokens a pass of the target", _number(row.get("tau"), ".3f")),
        ("training loss, last steps", _number(row.get("train_loss"), ".4f")),
        ("sent by each rank, bytes a step", _number(row["bytes_compressed_total"] / steps, ",.0f")),
        ("uncompressed, bytes a step", _number(row["bytes_raw_total"] / steps, ",.0f")),
        ("uncompressed / sent", _number(row.get("compression_ratio"), ".2f")),
        ("relative error of a gradient", _number(row.get("grad_rel_error"), ".3g")),
        ("median step, ms", _number(row.get("step_time_ms_p50"), ".0f")),
    ]
    table = [f"| {name} | {value} |" for name, value in lines if value is not None]
    return "\n".join(["| | |", "|---|---:|", *table]) + "\n"


def _rights(row: Mapping[str, Any]) -> str:
    if _is_embedded_alone(row):
        return _ATTRIBUTION
    uses_embedded = "embedded" in (row.get("data_sources") or {}) or row["dataset"] == EMBEDDED
    return (f"{_ATTRIBUTION}\nOf all else: " if uses_embedded else "") + _UNKNOWN_LICENCE


def _limits(row: Mapping[str, Any]) -> str:
    lines = [
        "The numbers above are of this one run. Another seed alone moves a perplexity by about a percent, so they show "
        "no difference between methods.",
        "Nothing was done about what the text says: the model repeats its errors and prejudices, and has been tried "
        "on its own held-out text only.",
    ]
    if row.get("nonfinite_steps"):
        lines.append(f"{row['nonfinite_steps']} steps were skipped, whose gradients were not finite.")
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _settings(row: Mapping[str, Any]) -> str:
    aside = {*(row.get("side_settings") or ()), "data_mix"}
    kept = {name: value for name, value in row["config"].items() if name not in aside}
    kept |= {name: _last(kept[name]) for name in _PATHS if isinstance(kept.get(name), str)}
    if mix := row["config"].get("data_mix"):
        kept["data_mix"] = [{"source": _last(source), "weight": weight} for source, weight in mix.items()]
    text = dump_yaml(kept)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}yaml\n{text}{fence}\n"


def _is_embedded_alone(row: Mapping[str, Any]) -> bool:
    """Is the embedded text, whose licence we know, all that the weights come from?"""
    is_draft, started = row.get("draft_target") is not None, row["config"].get("model_dir")
    return row["dataset"] == EMBEDDED and not is_draft and not started


def _is_masked(row: Mapping[str, Any]) -> bool:
    return row.get("val_next_sentence_accuracy") is not None


def _dataset(row: Mapping[str, Any]) -> str:
    sources = row.get("data_sources")
    return " + ".join(map(_last, sources)) if sources else _last(row["dataset"])


def _last(path: str) -> str:
    """The last part of a path; a name that is none stays as it is."""
    return Path(path).name or path


def _number(value: float | None, how: str) -> str | None:
    return None if value is None else format(value, how)


def _line(text: str) -> str:
    """``text`` on one line: a line of ``---`` would end the head."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _code(text: str) -> str:
    """``text`` on one line as Markdown code, in which nothing is markup, however many backticks it has."""
    line = _line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{space}{line}{space}{fence}"
