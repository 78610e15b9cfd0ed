#!/usr/bin/env bash
# Everything that must be green: lint, format, types, tests, scripts, a small sweep. All of it runs even when a part fails.
#
#   ./run_tests.sh                  # all
#   ./run_tests.sh -k config        # any flags: pytest alone, with these flags
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$root/scripts/environment.sh"
ensure_environment "$root" dev,docs,notebooks,examples || exit
cd "$root" || exit

if [ $# -gt 0 ]; then exec "$venv_python" -m pytest "$@"; fi

syntax() {
    local script failed=0
    for script in ./*.sh scripts/*.sh .ci/run; do bash -n "$script" || failed=1; done
    return "$failed"
}

smoke() { # a whole comparison, as a user makes one: a sweep of short runs, then its report
    local folder status=0
    folder=$(mktemp -d)
    "$venv_python" -m experiments.sweep experiments/recipes/smoke.yaml --out "$folder/rows.jsonl" &&
        "$venv_python" -m analysis.report "$folder/rows.jsonl" --out "$folder/report" --formats svg | tail -n 3 || status=1
    rm -rf "$folder"
    return "$status"
}

site() { # every page, every link; a warning is a failure
    local folder status=0
    folder=$(mktemp -d)
    NO_MKDOCS_2_WARNING=1 "$venv_python" -m mkdocs build --quiet --strict --site-dir "$folder" || status=1
    rm -rf "$folder"
    return "$status"
}

tests() { # several files of tests at once, one more than cores: many wait for their ranks
    local workers=$(($(nproc) + 1))
    "$venv_python" -m pytest --numprocesses $((workers < 4 ? workers : 4)) --dist loadfile
}

summary=() failed=0
check() { # NAME COMMAND...
    local name=$1 outcome=ok
    shift
    echo "== $name"
    "$@" || outcome=FAILED failed=1
    summary+=("$(printf '%-16s %s' "$name" "$outcome")")
}

check "ruff check" "$venv_python" -m ruff check .
check "ruff format" "$venv_python" -m ruff format --check .
check "mypy" "$venv_python" -m mypy comm_compress fsdp_lab experiments analysis examples scripts
check "scripts" syntax
check "site" site
check "pytest" tests
check "smoke sweep" smoke

echo "== summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
