# Sourced by the start scripts: makes .venv beside them and installs this checkout with the versions in constraints.txt.
#
#   source scripts/environment.sh
#   ensure_environment "$root"          # what training and reports need: the extras lab and analysis of pyproject.toml
#   ensure_environment "$root" dev      # and another extra (several: dev,smollm2)
#
# Afterwards $venv_python is the environment's interpreter. PYTHON=python3.12 chooses the one that makes .venv.
# A stamp in .venv holds a hash of what was asked for, so that the next start costs a few milliseconds and no pip.
# shellcheck shell=bash

ensure_environment() {
    local root=$1 extras=${2:-} want
    venv_python=$root/.venv/bin/python
    want=$({ echo "$root"; cat "$root/pyproject.toml" "$root/constraints.txt"; } | sha256sum)
    if _is_installed "$root/.venv" "$extras" "$want"; then return 0; fi

    # One installer at a time; whoever waited finds the work done. The lock is on a file that is there anyway.
    exec 9<"$root/pyproject.toml"
    if command -v flock >/dev/null && ! flock -n 9; then
        echo "environment: another start is installing; waiting for it" >&2
        flock 9
    fi
    local status=0
    if ! _is_installed "$root/.venv" "$extras" "$want"; then _install "$root" "$extras" "$want" || status=$?; fi
    exec 9<&-
    return "$status"
}

_is_installed() { # VENV EXTRAS HASH: any extras' stamp will do when none are asked for
    local stamp
    [ -x "$1/bin/python" ] || return 1
    for stamp in "$1/.installed-${2:-}"*; do
        if [ -z "$2" ] || [ "$stamp" = "$1/.installed-$2" ]; then
            if [ -f "$stamp" ] && [ "$(<"$stamp")" = "$3" ]; then return 0; fi
        fi
    done
    return 1
}

_install() { # ROOT EXTRAS HASH
    local root=$1 extras=$2 want=$3 venv=$1/.venv
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then _make_venv "$venv" || return; fi
    echo "environment: installing into .venv (the first time takes some minutes)" >&2
    rm -f "$venv"/.installed-* # an interrupted install leaves no stamp, so that it is done again
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check -c "$root/constraints.txt" \
        -e "$root[lab,analysis${extras:+,$extras}]" >&2; then
        echo "environment: the installation failed, see above; the next start tries again" >&2
        return 1
    fi
    echo "$want" >"$venv/.installing" && mv "$venv/.installing" "$venv/.installed-${extras:-base}"
}

_make_venv() { # VENV
    local python version
    python=$(_interpreter) || return
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        echo "environment: $python lacks the venv module; install it (Debian, Ubuntu: apt install python$version-venv)" >&2
        return 2
    fi
    echo "environment: making .venv with Python $version" >&2
    "$python" -m venv --clear "$1"
}

_interpreter() { # prints the first Python that is new enough; PYTHON, when set, is the only candidate
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    echo "environment: needs Python 3.11 or newer, ${PYTHON:-python3} is $(${PYTHON:-python3} --version 2>&1 | head -n 1);" \
        "name another one with PYTHON=/path/to/python" >&2
    return 2
}
