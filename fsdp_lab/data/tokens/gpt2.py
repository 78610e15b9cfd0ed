"""GPT-2's tokenizer, derived from its list of merges alone.

The vocabulary follows exactly: the 256 byte symbols (the printable ones first), then one token for each
merge in order, then <|endoftext|>: 256 + 50,000 + 1 = 50,257 ids. Byte-pair merges were learned one after the
other, so the first merges alone are the tokenizer of a smaller vocabulary, which suits small models.
"""

import gzip

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from fsdp_lab.data.sources.embedded_files import GPT2_MERGES

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 50_257
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
"""What a masked model needs beside text: the ids after the vocabulary's last one, in this order."""
_NUM_OTHERS = 256 + 1  # the ids that are not merges: the bytes and END_OF_TEXT


def merges_text(vocab_size: int = VOCAB_SIZE) -> str:
    """The merges file as OpenAI published it (vocab.bpe): a version line, then one pair "left right" on each line.

    For a smaller ``vocab_size`` only its first lines.
    """
    assert _NUM_OTHERS <= vocab_size <= VOCAB_SIZE
    lines = gzip.decompress(GPT2_MERGES.read_bytes()).decode("utf-8").splitlines(keepends=True)
    return "".join(lines[: 1 + vocab_size - _NUM_OTHERS])


def merges(vocab_size: int = VOCAB_SIZE) -> list[tuple[str, str]]:
    """The merges as (left, right) pairs, first learned first: 50,000, or the first of them for a smaller vocabulary."""
    pairs = (line.split(" ") for line in merges_text(vocab_size).split("\n")[1:] if line)
    return [(left, right) for left, right in pairs]


def vocabulary(pairs: list[tuple[str, str]]) -> dict[str, int]:
    """The id of every token, as in OpenAI's encoder.json."""
    tokens = [*_byte_symbols(), *(left + right for left, right in pairs), END_OF_TEXT]
    return {token: i for i, token in enumerate(tokens)}


def gpt2_tokenizer(vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """GPT-2's byte-level BPE: 50,257 ids, <|endoftext|> is the last. It needs no network and no other file.

    A smaller ``vocab_size`` (at least 257) keeps only the first merges.
    """
    pairs = merges(vocab_size)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(pairs), merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    # A tokenizer built wrongly raises no error and gives nonsense: compare it with known answers.
    assert vocab_size < VOCAB_SIZE or tokenizer.encode("Hello world").ids == [15496, 995]
    assert tokenizer.get_vocab_size() == vocab_size
    assert tokenizer.token_to_id(END_OF_TEXT) == vocab_size - 1
    return tokenizer


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a masked model's tokens after the last id; it puts them around one text or two."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return tokenizer


def _byte_symbols() -> list[str]:
    """The printable stand-ins of the 256 bytes, in the order of their ids."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    num_hidden = 256 - len(visible)
    return [chr(byte) for byte in visible] + [chr(256 + i) for i in range(num_hidden)]
