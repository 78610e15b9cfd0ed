"""Preparing data for many ranks: one rank tokenises, the others watch its status file.

If they waited in a barrier, the process group's timeout would end the run when tokenising takes an hour.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from fsdp_lab.data.tokens.shards import TokenizedCorpus
from fsdp_lab.data.tokens.status import Status, heartbeat, read_status, status_path, write_status
from fsdp_lab.data.tokens.tokenization import DEFAULT_SHARD_TOKENS, DEFAULT_VAL_FRACTION, cache_errors, tokenize
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.errors import DataError

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.1, 2.0


def _nothing() -> None: ...


def prepare(
    data_path: Path,
    tokenizer: TextTokenizer,
    cache_dir: Path,
    *,
    is_builder: bool,
    run_id: str,
    val_fraction: float = DEFAULT_VAL_FRACTION,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    progress: bool = True,
    patience_s: float = 120.0,
    check: Callable[[], None] = _nothing,
) -> TokenizedCorpus:
    """The token cache of `data_path`, on every rank, without a collective.

    The rank with `is_builder` tokenises (see `tokenize`); the others wait for it, however long it takes. Ranks
    that share `cache_dir` need one builder among them: with one cache_dir on each node, one builder on each node.
    `run_id` is a string that all ranks of this start share and no earlier start used (broadcast one). `check` is
    called while working and waiting; what it raises ends the wait.

    Raises DataError on every rank when the builder fails, and on the others when the builder has given no sign of
    life for `patience_s` seconds.
    """
    path = status_path(cache_dir, run_id)
    if not is_builder:
        return TokenizedCorpus.open(cache_dir / _wait(path, patience_s, check), vocab_size=tokenizer.vocab_size)
    try:
        with cache_errors(cache_dir), heartbeat(path):
            corpus = tokenize(
                data_path,
                tokenizer,
                cache_dir,
                val_fraction=val_fraction,
                shard_tokens=shard_tokens,
                progress=progress,
                check=check,
            )
    except BaseException as error:  # an interrupt as well: the others must not wait for a rank that has left
        with contextlib.suppress(OSError):  # a full disk is told by `error` itself
            write_status(path, Status("failed", str(error) or type(error).__name__))
        raise
    write_status(path, Status("done", corpus.folder.name))
    return corpus


def _wait(path: Path, patience_s: float, check: Callable[[], None]) -> str:
    """Waits until the builder is done; returns the name of the finished cache folder."""
    poll = _FIRST_POLL_SECONDS
    seen, seen_at = read_status(path), time.monotonic()
    while seen is None or seen.state == "building":
        check()
        if time.monotonic() - seen_at > patience_s:
            raise DataError(
                f"no sign of life for {patience_s:.0f} s from the rank that tokenises (it writes {path}); "
                "it was killed or hangs: see its output, and start again, which resumes"
            )
        time.sleep(poll)
        poll = min(1.5 * poll, _LAST_POLL_SECONDS)
        if (status := read_status(path)) != seen:
            seen, seen_at = status, time.monotonic()
    if seen.state == "failed":
        raise DataError(f"the rank that tokenises failed: {seen.text}")
    return seen.text
