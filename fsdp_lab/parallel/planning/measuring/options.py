"""The flags that say what is measured of devices, without what measures: that needs torch and models."""

from __future__ import annotations

import argparse

from fsdp_lab.settings.flag_values import whole


def options_of(parser: argparse.ArgumentParser) -> None:
    """The flags that say what is measured; `fsdp-lab plan` has them, too."""
    parser.add_argument("--model", default="gpt2-mini")
    parser.add_argument("--sequences", type=whole(1), default=4, help="sequences of the whole batch")
    parser.add_argument("--length", type=whole(2), default=128, help="tokens of a sequence")
    parser.add_argument("--activation", default="int8", help="method of activations, beside none")
    parser.add_argument("--gradients", default="int8", help="method of parameters' gradients, beside none")
    parser.add_argument("--repeats", type=whole(1), default=5, help="timed steps of every part")
