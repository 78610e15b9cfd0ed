import pytest
from hypothesis import example, given, settings, strategies as st

from fsdp_lab.data.tokens import pieces as pieces_module
from fsdp_lab.data.tokens.pieces import Piece, batches, pieces
from fsdp_lab.data.tokens.tokenizer import TextTokenizer

words = st.sampled_from(["word", "a", "\n", " ", "  ", "\n\n", "don't", "12", "é漢", "...", "\t", " x"])


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "PIECE_CHARS", 16)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200), limit=st.integers(2, 40))
def test_pieces_joined_are_the_text_and_only_the_last_is_last(text: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces_module, "PIECE_CHARS", limit)
        found = list(pieces(7, "train", text))
    assert "".join(piece.text for piece in found) == text
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    assert all(len(piece.text) <= limit for piece in found)
    assert {piece.document for piece in found} == {7}


def test_tokens_of_pieces_are_the_tokens_of_the_text(tokenizer: TextTokenizer) -> None:
    @settings(max_examples=300, deadline=None)
    @given(parts=st.lists(words, max_size=60), lone=st.sampled_from(" \n"))
    @example(parts=["word", "\n", "\n", "word"] * 8, lone="\n")
    def law(parts: list[str], lone: str) -> None:
        # A lone space or newline before every fourth part, so that a safe cut exists within half a piece.
        text = "".join(f"end{lone}w{part}" if i % 4 == 0 else part for i, part in enumerate(parts))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces_module, "PIECE_CHARS", 80)
            found = [tokenizer.encode(piece.text).tolist() for piece in pieces(0, "train", text)]
        assert [i for ids in found for i in ids] == tokenizer.encode(text).tolist()

    law()


def test_batches_are_bounded_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "_BATCH_CHARS", 100)
    monkeypatch.setattr(pieces_module, "_BATCH_PIECES", 5)
    stream = [Piece(i, "train", "x" * (i % 60), last=True) for i in range(200)]
    found = list(batches(stream))
    assert [piece for batch in found for piece in batch] == stream
    assert all(0 < len(batch) <= 5 for batch in found)
    assert all(sum(len(piece.text) for piece in batch[:-1]) < 100 for batch in found)
