"""The flag ``--system``: the settings of a published system beside those that were given, or why they contradict.

    --system sdp4bit                                        # as --method "int4 hadamard + delta"
    --system powersgd --comm_config_json '{"rank": 8}'      # what the system leaves open may be given

What is trained is the arm, however it was said: the name is left out of the settings, so that rows are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comm_compress as cc

SETTINGS = {"comm_compress": "comm_config_json", "param_compress": "param_config_json"}
"""The flag of each direction's method, and that of the method's settings."""


def joined(name: str, system: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings of ``system``, called ``name``, with those ``given``, and a complaint for each contradiction.

    Labels are taken apart in both. A setting of a method that the system does not say is taken from ``given``.
    """
    together = {**system, **given}
    complaints = []
    for flag, value in system.items():
        if flag in SETTINGS.values():
            continue
        if given.get(flag, value) != value:
            complaints.append(_contradicts(name, flag, value, given[flag]))
        elif (own := SETTINGS.get(flag)) and isinstance(theirs := given.get(own, {}), Mapping):
            try:
                _, settings = cc.labels.with_settings(cc.labels.Method(value, system.get(own, {})), theirs)
            except ValueError as error:
                complaints.append(f"system: {name} contradicts {own}: {error}; {_ADVICE.format(name)}")
            else:
                together |= {own: settings} if settings or own in together else {}
    return together, complaints


_ADVICE = "leave one of them out, or give all settings by themselves (fsdp-lab systems {})"


def _contradicts(name: str, flag: str, value: Any, given: Any) -> str:
    said, other = (str(one).lower() if isinstance(one, bool) else str(one) for one in (value, given))
    return f"system: {name} says {said} for {flag}, which is given as {other}, too; {_ADVICE.format(name)}"
