"""The model card: what it says is the row's, and no name can be markup in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from fsdp_lab.run.card import EMBEDDED, card, write_card

HOSTILE = "a`b``<script>alert(1)</script> | [x](javascript:y)\n---\n# Not a heading\n```\n![p](q)"


def row(**changed: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_dir": None,
        "data_path": None,
        "data_mix": {},
        "learning_rate": 0.003,
        "output_dir": "/home/me/out",
    }
    return {
        "run_name": "mine",
        "model": "gpt2-nano",
        "draft_target": None,
        "num_parameters": 5_400_000,
        "steps": 10,
        "tokens_seen": 20_480,
        "world_size": 2,
        "virtual_ranks": None,
        "compress_method": "int8",
        "param_compress_method": "none",
        "dataset": EMBEDDED,
        "data_sources": None,
        "val_ppl": 782.71,
        "val_loss": 6.6628,
        "bytes_compressed_total": 144_000_000,
        "bytes_raw_total": 224_000_000,
        "compression_ratio": 1.5556,
        "nonfinite_steps": 0,
        "side_settings": ["output_dir"],
        **changed,
        "config": config | changed.get("config", {}),
    }


def head(text: str) -> dict[str, Any]:
    empty, yaml_text, _ = text.split("---\n", 2)
    assert empty == ""
    return dict(yaml.safe_load(yaml_text))


def test_its_numbers_are_the_rows() -> None:
    text = card(row())
    (index,) = head(text)["model-index"]
    (metric,) = index["results"][0]["metrics"]
    assert (metric["type"], metric["value"]) == ("perplexity", 782.71)
    assert "| validation perplexity | 782.71 |" in text
    assert "| sent by each rank, bytes a step | 14,400,000 |" in text
    assert "| uncompressed / sent | 1.56 |" in text
    assert "learning_rate: 0.003" in text
    assert head(text)["library_name"] == "transformers"
    assert head(text)["license"] == "cc-by-sa-4.0"
    assert "Wikipedia's contributors" in text


def test_replicas_that_trained_by_themselves_are_named() -> None:
    outer = {"outer": "diloco", "outer_every": 30, "outer_method": "int4", "dp_replicas": 2}
    assert "2 replicas trained by themselves and synchronised every 30 steps (`diloco`, by `int4`)." in card(
        row(**outer)
    )
    assert "replicas" not in card(row())


def test_what_is_not_known_is_not_claimed() -> None:
    """A licence of someone else's text or weights; times of ranks that were played; folders of this machine."""
    theirs = {"data_path": "/home/me/secret/poems.json", "model_dir": "/home/me/secret/base"}
    text = card(row(dataset="/home/me/secret/poems.json", config=theirs))
    assert "license" not in head(text)
    assert "add `license:`" in text
    assert "median step" not in text
    assert "poems.json" in text
    assert "/home/me" not in text
    started = card(row(config={"model_dir": "/home/me/base"}))
    assert "license" not in head(started), "the text's licence says nothing about the weights it began with"
    assert "Wikipedia's contributors" in started
    mixed = card(row(dataset="mix", data_sources={"embedded": {}, "/home/me/a.json": {}}))
    assert "license" not in head(mixed)
    assert "Wikipedia's contributors" in mixed


@pytest.mark.parametrize("place", ["model", "dataset", "run_name", "draft_target", "compress_method"])
def test_no_name_is_markup(place: str) -> None:
    text = card(row(**{place: HOSTILE}, config={"data_path": HOSTILE, "x```": HOSTILE}))
    parsed = MarkdownIt("commonmark").parse(text.split("---\n", 2)[2])
    inline = [token for block in parsed for token in [block, *(block.children or [])]]
    assert not [t for t in inline if t.type in ("html_block", "html_inline", "image")]
    assert all(str(t.attrGet("href")).startswith("https://") for t in inline if t.type == "link_open")
    headings = [parsed[i + 1].content for i, t in enumerate(parsed) if t.type == "heading_open"]
    assert len(headings) == 6
    assert "Not a heading" not in headings
    assert isinstance(head(text)["tags"], list)


def test_a_draft_is_not_said_to_be_a_model_of_transformers() -> None:
    text = card(row(draft_target="/targets/smollm", val_ppl=None, val_loss=None, tau=2.125))
    assert "library_name" not in head(text)
    assert "eagle3" in head(text)["tags"]
    assert "| tokens a pass of the target | 2.125 |" in text
    assert "AutoModelForCausalLM" not in text


def test_it_replaces_an_earlier_card_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("old")
    write_card(tmp_path, row())
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == card(row())
