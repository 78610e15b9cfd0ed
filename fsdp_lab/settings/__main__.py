"""The settings of a training run, from flags and a file: flags win over ``--config FILE``, the file over the defaults.

    python -m fsdp_lab.settings check -- --batch_size 4              # 0, or 2 and every complaint at once
    python -m fsdp_lab.settings show -- --batch_size 4               # the resolved settings as YAML
    python -m fsdp_lab.settings get output_dir seed -- --seed 1      # single values, one a line, for shell scripts

`show` takes a tenth of a second, because it needs no torch. `check` and `get` also find whatever else can be known
to be wrong before any rank starts (`fsdp_lab.settings.refusing.early`): launch scripts call them first.
"""

import sys
from collections.abc import Sequence

from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.flags import as_typed
from fsdp_lab.settings.reading.cli import closest, shown
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_endings, user_errors


def main(argv: Sequence[str]) -> int:
    """Runs ``check``, ``show`` or ``get NAMES...`` on the flags after ``--``; returns the exit code."""
    words = list(argv)
    if words[:1] in (["-h"], ["--help"]):
        usage = "usage: python -m fsdp_lab.settings check | show | get NAME... -- [--FLAG VALUE]..."
        print(as_typed(f"{usage}\n\n{__doc__}"))
        return 0
    split = words.index("--") if "--" in words else len(words)
    command, flags = words[:split], words[split + 1 :]
    with user_errors("settings"):
        if command[:1] not in (["check"], ["show"], ["get"]):
            raise ValueError("wants check, show or get NAMES..., then -- and the flags")
        config = parse(flags) if command[0] == "show" else checked(TrainConfig, flags)
        values = config.resolved()
        unknown = [name for name in command[1:] if name not in values]
        if unknown:
            raise ConfigError([f"{name}: no such setting{closest(name, config.specs())}" for name in unknown])
        if command[0] == "show":
            print(config.to_yaml(), end="")
        for name in command[1:]:
            print(shown(values[name]))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
