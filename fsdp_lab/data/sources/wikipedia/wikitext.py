"""MediaWiki markup to plain text by regular expressions: no parser, but good enough for training data."""

import html
import re

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_REFERENCE = re.compile(r"<ref[^>]*/>|<ref.*?</ref>", re.DOTALL)
_BLOCK = re.compile(r"<(math|gallery|timeline|code|score|source)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"</?\w[^>]*>")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_TABLE = re.compile(r"\{\|[^{]*?\|\}", re.DOTALL)
_MEDIA = re.compile(
    r"\[\[(?:File|Image|Category|[a-z-]{2,12}):[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", re.IGNORECASE
)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_EXTERNAL = re.compile(r"\[(?:https?:)?//\S+\s*([^\]]*)\]")
_QUOTES = re.compile(r"'{2,}")
_HEADING = re.compile(r"^=+\s*(.*?)\s*=+\s*$", re.MULTILINE)
_LIST = re.compile(r"^[*#:;]+\s*", re.MULTILINE)
_END_MATTER = re.compile(r"^==\s*(?:References|External links|Notes|Further reading|See also)\s*==.*", re.S | re.M)
_BLANK_LINES = re.compile(r"\n\s*\n+")


def plain_text(markup: str) -> str:
    """The readable text of one article, up to sections such as "References"."""
    text = html.unescape(_END_MATTER.sub("", markup))
    for pattern in (_COMMENT, _REFERENCE, _BLOCK):
        text = pattern.sub("", text)
    text = _until_stable(_TEMPLATE, text)
    text = _until_stable(_TABLE, text)
    text = _TAG.sub("", _MEDIA.sub("", text))
    text = _EXTERNAL.sub(r"\1", _LINK.sub(r"\1", text))
    text = _LIST.sub("", _HEADING.sub(r"\1", _QUOTES.sub("", text)))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _until_stable(pattern: re.Pattern[str], text: str) -> str:
    """Removes innermost matches until none is left, because templates and tables are nested."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text
