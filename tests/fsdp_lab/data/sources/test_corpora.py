"""Corpora of several sources: each text once, and as many as expected."""

from pathlib import Path

import pytest

from fsdp_lab.data.sources import corpora
from fsdp_lab.data.sources.corpora import Source
from fsdp_lab.data.sources.packages import Package
from fsdp_lab.files.errors import DataError
from tests.fsdp_lab.data.sources.archives import extract_twice, wheel


def test_mixtures_keep_each_text_once_and_check_counts(tmp_path: Path) -> None:
    path = wheel(tmp_path, {})
    package = Package("pypi", "thing", path.name, "1")
    assert [d.id for d in corpora.mix((Source(package, extract_twice, 3, 25),), tmp_path)] == ["1", "3"]
    assert [d.id for d in corpora.mix((Source(package, extract_twice, 3, 25, is_wikipedia=True),), tmp_path)] == [
        "1",
        "2",
    ]
    with pytest.raises(DataError, match="gave 3 documents, expected 4"):
        list(corpora.mix((Source(package, extract_twice, 4, 25),), tmp_path))
    moving = Package("apt", "thing", path.name)
    assert len(list(corpora.mix((Source(moving, extract_twice, 3, 27),), tmp_path))) == 2
    with pytest.raises(DataError, match="characters"):
        list(corpora.mix((Source(moving, extract_twice, 3, 40),), tmp_path))
