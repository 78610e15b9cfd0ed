"""Processes that belong together end together."""

import subprocess

from experiments.runs.processes import wait_together


def test_a_rank_ended_by_a_signal_counts_as_a_failure() -> None:
    kill = ["sh", "-c", "kill -9 $$"]
    starting = (subprocess.Popen(words, start_new_session=True) for words in (["true"], kill, ["sleep", "30"]))
    assert wait_together(starting, grace_s=0.1) == 137
