"""A font for Chinese labels, among those of the machine."""

from __future__ import annotations

import os

from matplotlib import font_manager

# simplified Chinese first; the files of Noto hold all regions, and matplotlib before 3.11 sees Japan's only
CJK_FONTS = (
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Heiti SC",
    "Noto Sans CJK JP",
    "Droid Sans Fallback",
)
_FILES = ("NotoSansCJK", "SourceHanSans", "wqy-", "msyh", "simhei", "PingFang", "DroidSansFallback")
HOW_TO_INSTALL = (
    "no font with Chinese characters found for --language zh; install one (Debian, Ubuntu: "
    "sudo apt install fonts-noto-cjk or fonts-wqy-zenhei; Fedora: sudo dnf install google-noto-sans-cjk-fonts) "
    "and draw again, or use --language en"
)


def chinese() -> str:
    """The name of the best font family found. ValueError, with how to install one, when there is none."""
    for look_again in (False, True):
        if look_again:
            _add_fonts_newer_than_the_cache()
        names = {font.name for font in font_manager.fontManager.ttflist}
        for name in CJK_FONTS:
            if name in names:
                return name
    raise ValueError(HOW_TO_INSTALL)


def _add_fonts_newer_than_the_cache() -> None:
    """Register fonts installed since matplotlib made the list of fonts that it keeps."""
    for path in font_manager.findSystemFonts():
        if os.path.basename(path).startswith(_FILES):
            font_manager.fontManager.addfont(path)
