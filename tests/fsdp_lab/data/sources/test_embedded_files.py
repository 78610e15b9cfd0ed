import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

from fsdp_lab.data.batches.loader import TokenDataset
from fsdp_lab.data.reading.documents import read_documents
from fsdp_lab.data.sources.embedded_files import GPT2_MERGES, WIKI_LEADS
from fsdp_lab.data.tokens.tokenization import tokenize
from fsdp_lab.data.tokens.tokenizer import TextTokenizer


def test_contents_are_the_ones_committed() -> None:
    # Of the content, not of the gzip bytes: those depend on the zlib at hand.
    hashes = {
        path: hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() for path in (WIKI_LEADS, GPT2_MERGES)
    }
    assert hashes[GPT2_MERGES] == "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    assert hashes[WIKI_LEADS] == "dfdc2f21d23efcf074119d8161889a150b4cabefbdbcd523e7e06bf82749ee4e"


def test_wiki_leads() -> None:
    documents = list(read_documents(WIKI_LEADS))
    assert len(documents) == 10_033
    assert [document.id for document in documents] == [f"wiki-lead-{i:05d}" for i in range(10_033)]
    assert [document.title for document in documents] == sorted(document.title for document in documents)
    assert sum(len(document.text) for document in documents) == 4_875_024
    assert len({document.text for document in documents}) == 10_033


def test_attribution_lies_beside_them() -> None:
    text = (WIKI_LEADS.parent / "ATTRIBUTION.md").read_text()
    assert "Attribution-ShareAlike 4.0" in text
    assert "Modified" in text


def test_it_trains(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    corpus = tokenize(WIKI_LEADS, tokenizer, tmp_path, progress=False)
    total = corpus.num_tokens("train") + corpus.num_tokens("val")
    assert 1_050_000 < total < 1_150_000
    assert 0.04 < corpus.num_tokens("val") / total < 0.06
    train = TokenDataset(corpus, "train", 256)
    assert tokenizer.decode(train[0].numpy()).startswith("0\n0 is a number representing an empty quantity.")


def test_the_room_opens_without_torch_and_transformers() -> None:
    program = (
        "import sys, fsdp_lab.data as d; d.tokenize, d.load_tokenizer, d.prepare, d.WIKI_LEADS\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    import fsdp_lab.data

    assert all(getattr(fsdp_lab.data, name) is not None for name in fsdp_lab.data.__all__)
    assert set(fsdp_lab.data.__all__) == set(fsdp_lab.data._MODULE_OF)
