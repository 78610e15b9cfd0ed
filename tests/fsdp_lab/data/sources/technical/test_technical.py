"""Programs and texts about them: which files of a package are taken, and what is left out."""

import gzip
import json
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.technical import botocore, linux_doc, python_code
from tests.fsdp_lab.data.sources.archives import wheel


def test_python_code_is_modules_without_tests(tmp_path: Path) -> None:
    files = {"sympy/a.py": b"x = 1\n", "sympy/b/c.py": b" \n", "sympy/b/tests/d.py": b"y", "sympy/tests/e.py": b"z"}
    archive = wheel(tmp_path, {**files, "sympy/f.txt": b"no program", "other/g.py": b"not its own"})
    assert list(python_code.extract(archive)) == [Document("sympy-sympy/a.py", "sympy/a.py", "x = 1")]


def test_pages_of_the_kernel_are_titled_by_their_path_and_not_translated(tmp_path: Path) -> None:
    sources = "usr/share/doc/linux-doc-6.1/html/_sources/"
    files = {f"{sources}mm/page.rst.txt": b"Pages\n\xff", f"{sources}translations/zh_CN/mm.rst.txt": b"text"}
    archive = wheel(tmp_path, {**files, "usr/share/doc/linux-doc-6.1/html/mm/page.html": b"made of it"})
    assert list(linux_doc.extract(archive)) == [
        Document("linux-mm/page", "mm/page", "Pages\n\N{REPLACEMENT CHARACTER}")
    ]


def test_descriptions_of_services_are_plain_text_and_come_once(tmp_path: Path) -> None:
    def model(*documentation: str) -> bytes:
        shapes = [{"shape": {"documentation": text}} for text in documentation]
        return gzip.compress(
            json.dumps({"shapes": shapes, "documentation": {"documentation": "<p>inner</p>"}}).encode()
        )

    data = "botocore/data/"
    files = {
        f"{data}s3/2006/service-2.json.gz": model("<p>A &amp;\n  <b>bucket</b></p>", "", "<i> </i>", "an object"),
        f"{data}sqs/2012/service-2.json.gz": model("an object", "a queue"),
        f"{data}sts/2011/service-2.json.gz": model("an object"),
        f"{data}s3/2006/waiters-2.json.gz": model("no description"),
    }
    assert list(botocore.extract(wheel(tmp_path, files))) == [
        Document("botocore-s3-2006", "s3", "A & bucket\nan object\ninner"),
        Document("botocore-sqs-2012", "sqs", "a queue"),
    ]
