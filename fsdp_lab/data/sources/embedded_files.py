"""The paths of the data files that come with the package. `embedded/ATTRIBUTION.md` says whose work they are."""

from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "embedded"

WIKI_LEADS = _FOLDER / "wiki_leads.json.gz"
"""Opening paragraphs of 10,033 English Wikipedia articles: a JSON array of {"id", "title", "text"}."""

GPT2_MERGES = _FOLDER / "gpt2_merges.bpe.gz"
"""GPT-2's 50,000 BPE merges in the order they were learned: its whole tokenizer follows from them."""
