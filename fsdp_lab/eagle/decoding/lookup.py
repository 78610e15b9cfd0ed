"""Prompt lookup: drafts without a draft model, copied from the text so far. A draft model has to be better than this.

The last three tokens (else two, else one) are looked for earlier in the text; the tokens that followed them there are
proposed (Saxena 2023, "Prompt Lookup Decoding"; transformers' ``prompt_lookup_num_tokens``).
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 3  # tokens that are looked for first; then fewer


def lookup_passes(prompt: Sequence[int], answer: Sequence[int], num_drafts: int) -> int:
    """Passes of the target that a greedy ``answer`` would have taken after its first token, which the prompt gives."""
    said, whole, passes = len(prompt) + 1, [*prompt, *answer], 0
    while said < len(whole):
        proposed = propose(whole[:said], min(num_drafts, len(whole) - said - 1))
        kept = 0
        while kept < len(proposed) and proposed[kept] == whole[said + kept]:
            kept += 1
        said += kept + 1
        passes += 1
    return passes


def propose(said: list[int], count: int) -> list[int]:
    """Proposes at most ``count`` tokens to follow ``said``; none where its last token occurred nowhere before."""
    for length in range(min(LONGEST, len(said) - 1), 0, -1):
        last = said[-length:]
        for start in range(len(said) - length - 1, -1, -1):
            if said[start : start + length] == last:
                return said[start + length : start + length + count]
    return []
