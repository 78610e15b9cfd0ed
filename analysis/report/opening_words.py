"""What the first figure is called, and how it is read."""

from __future__ import annotations

TITLE = "Quality against bits"
ABOUT = (
    "Change of validation perplexity, seed by seed, over the bits that a rank sends for a parameter in a step, both "
    "directions. Filled: holds the bar, or the baseline; hollow: does not, or the seeds do not decide; faint: not "
    "compared fairly. Bars: 95 % intervals; stepped line: front of the arms that are compared fairly. Point at a mark, "
    "or reach it with Tab, to read the arm; a click leaves its method alone."
)
