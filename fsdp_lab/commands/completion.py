"""Completion of commands, flags, methods, systems and recipes on Tab.

    eval "$(python -m fsdp_lab.commands.completion bash)"      # in ~/.bashrc
    eval "$(python -m fsdp_lab.commands.completion zsh)"       # in ~/.zshrc

The script that is printed has all commands and the names of all methods, systems and (in a checkout) recipes in it, so
that Tab starts no Python. Flags are asked of the command itself (its --help), once in a shell: the first Tab after a
dash takes as long as that help does. Where nothing fits, names of files are completed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.commands.reference.methods_file import read
from fsdp_lab.commands.table import COMMANDS, FAMILIES, below
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.systems.table import recipes
from fsdp_lab.settings.user_errors import unix_endings

RECIPES = Path(__file__).resolve().parents[2] / "experiments" / "recipes"
"""An installed package has none. Files whose names begin with `_` are included by recipes."""
METHOD_FLAGS = ("--comm_compress", "--param_compress", "--method", "--methods", "--arm", "--baseline")
"""Flags that are followed by a method, in whichever commands have them."""

_FOR_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
_SCRIPT = r"""
declare -gA _fsdp_lab_known
_fsdp_lab_flags() { # COMMAND: its flags, remembered in this shell
    if [ -z "${_fsdp_lab_known[$1]-}" ]; then
        _fsdp_lab_known[$1]=$(fsdp-lab ${1%% *} $([ "$1" = "${1#* }" ] || echo "${1#* }") --help 2>/dev/null |
            grep -oE -e '(^|[^A-Za-z_-])--[a-z][A-Za-z0-9_-]*' | grep -oE -e '--.*' | sort -u)
    fi
}
_fsdp_lab() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} first=${COMP_WORDS[1]-} words="" command
    command=$first
    case "$first ${COMP_WORDS[2]-}" in @TWO@) command="$first ${COMP_WORDS[2]}" ;; esac
    if [ "$COMP_CWORD" = 1 ]; then
        words="@FIRST@ --help --version"
    elif [ "${word#-}" != "$word" ]; then
        _fsdp_lab_flags "$command"
        words=${_fsdp_lab_known[$command]}
    else
        case $before in @METHOD_FLAGS@) words="@METHODS@" ;; --system) words="@SYSTEMS@" ;; esac
        if [ "$COMP_CWORD" = 2 ]; then
            case $first in
                @SECOND@
                methods) words="@METHODS@ common" ;;
                systems) words="@SYSTEMS@" ;;
                conformance) words="@METHODS@" ;;
                sweep) words="@RECIPES@" ;;
                completion) words="bash zsh" ;;
            esac
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _fsdp_lab fsdp-lab
"""


def script(shell: str) -> str:
    """The completion script for ``shell``: "bash" or "zsh", which understands bash's."""
    firsts = sorted({command.words.partition(" ")[0] for command in COMMANDS} | FAMILIES.keys())
    seconds = {word: [command.words.partition(" ")[2] for command in below(word)] for word in firsts}
    spellings = [flag.replace("_", mark) for flag in METHOD_FLAGS for mark in "_-"]
    filled = {
        "FIRST": " ".join(firsts),
        "TWO": " | ".join(f'"{command.words}"' for command in COMMANDS if " " in command.words),
        "SECOND": "\n                ".join(f'{w}) words="{" ".join(s)}" ;;' for w, s in seconds.items() if s),
        "SYSTEMS": " ".join(recipes()),
        "RECIPES": " ".join(sorted(path.stem for path in RECIPES.rglob("[!_]*.yaml"))),
        "METHODS": " ".join(method["name"] for method in read()["methods"]),
        "METHOD_FLAGS": " | ".join(dict.fromkeys(spellings)),
    }
    text = _SCRIPT.lstrip()
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return (_FOR_ZSH if shell == "zsh" else "") + text


def main(argv: Sequence[str]) -> int:
    """Print the script for one shell."""
    parser = program("fsdp_lab.commands.completion", __doc__)
    parser.add_argument("shell", choices=["bash", "zsh"])
    print(script(parser.parse_args(argv).shell), end="")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
