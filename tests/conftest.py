"""Hypothesis draws the same examples every time; `--hypothesis-profile=explore` draws new ones."""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile("fixed")
