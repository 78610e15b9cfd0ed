#!/usr/bin/env bash
# Trains, measures and records: makes the environment when needed, checks the flags, starts one rank per GPU (two
# without a GPU; one process for all of --virtual_ranks) under torchrun, shows TensorBoard, keeps a log, and returns the
# training's exit code (2: a bad flag).
#
#   ./run_safe_training.sh                                  # the defaults
#   ./run_safe_training.sh --comm_compress topk --comm_config_json '{"ratio": 0.01}'
#   ./run_safe_training.sh --help                           # every flag
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$root/scripts/environment.sh"
source "$root/scripts/tensorboard.sh"

usage() {
    cat <<'TEXT'
usage: ./run_safe_training.sh [--nproc_per_node N] [--keep_tensorboard] [--tensorboard_host ADDRESS]
                              [--config FILE.yaml] [--FLAG VALUE]...

This script's own flags:
  --nproc_per_node N    ranks on this machine (default: the number of GPUs; 2 without one; 1 with --virtual_ranks)
  --keep_tensorboard    let TensorBoard run on after the training
  --tensorboard_host A  address that TensorBoard listens on (default: 127.0.0.1, this machine alone; 0.0.0.0 shows the
                        runs to everyone who can reach this machine)

Every other flag goes to fsdp_lab.train:

TEXT
}

count_gpus() { # those that the training will see
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '[^ ]'
    else
        { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU '
    fi
}

# Flags: ours are taken out, the rest is passed on word for word.
ranks="" keep_tensorboard="" board_host=127.0.0.1 flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --nproc_per_node | --nproc-per-node) ranks=${2:-nothing} && shift ;;
        --nproc_per_node=* | --nproc-per-node=*) ranks=${1#*=} ranks=${ranks:-nothing} ;;
        --keep_tensorboard) keep_tensorboard=yes ;;
        --tensorboard_host) board_host=${2:-} && shift ;;
        --tensorboard_host=*) board_host=${1#*=} ;;
        -h | --help) help=yes ;;
        *) flags+=("$1") ;;
    esac
    [ $# -gt 0 ] && shift
done
if [ -n "$ranks" ] && ! [[ $ranks =~ ^[1-9][0-9]*$ ]]; then
    echo "--nproc_per_node: got $ranks on the command line, wants a whole number, at least 1" >&2
    exit 2
fi

if ! [[ $board_host =~ ^[A-Za-z0-9.:]+$ ]]; then
    echo "--tensorboard_host: got '$board_host' on the command line, wants an address, such as 127.0.0.1" >&2
    exit 2
fi

ensure_environment "$root" || exit
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if [ -n "${help-}" ]; then
    usage
    exec "$venv_python" -m fsdp_lab.cli check -- --help
fi

# A bad flag ends here, with one message, before any rank is started (torchrun would turn exit code 2 into 1).
settings=$("$venv_python" -m fsdp_lab.cli get output_dir tensorboard virtual_ranks -- ${flags[@]+"${flags[@]}"}) || exit
{ read -r output_dir && read -r tensorboard && read -r virtual_ranks; } <<<"$settings"
mkdir -p "$output_dir" || exit 2

started="ranks"
if [ "$virtual_ranks" != 0 ]; then
    ranks=${ranks:-1} started="process for $virtual_ranks virtual ranks"
elif [ -z "$ranks" ]; then
    ranks=$(count_gpus)
    [ "$ranks" -gt 0 ] || ranks=2
fi
log=$output_dir/training_log_safe_$(date +%Y%m%d_%H%M%S).txt
[ ! -e "$log" ] || log=${log%.txt}_$$.txt # two starts within one second
exec {to_log}> >(trap '' INT TERM HUP QUIT USR1 USR2; exec tee -a "$log") # a signal must not cost the last lines
tee_pid=$!

# torchrun gets its own process group (set -m), so that Ctrl-C reaches it once: through us, like every other signal.
# `--` ends its own flags: it would take --log or --max, abbreviations of its own, out of the training's. fsdp_lab.launch
# is torchrun that heeds every stop signal, and keeps the exit code of the rank that failed.
# On a terminal rank 0 draws its bar there, by name (torchrun's ranks have no /dev/tty), and logs plain lines.
if [ -t 1 ]; then
    { FSDP_LAB_TERMINAL=$(tty <&3) && export FSDP_LAB_LOG=$log FSDP_LAB_TERMINAL; } 3<&1
fi
set -m
"$venv_python" -m fsdp_lab.launch --standalone --local-addr=127.0.0.1 --nproc-per-node="$ranks" \
    -m -- fsdp_lab.train ${flags[@]+"${flags[@]}"} </dev/null >&"$to_log" 2>&1 &
torchrun=$!
set +m
interrupted=""
for signal in TERM INT HUP QUIT USR1 USR2; do
    # shellcheck disable=SC2064
    trap "interrupted=yes; kill -s $signal $torchrun 2>/dev/null" "$signal"
done

echo "$ranks $started; log: $log" >&"$to_log"
board=""
if [ "$tensorboard" = true ] && port=$(free_port 6006); then
    set -m
    serve_tensorboard "$venv_python" "$output_dir" "$port" "$board_host" {to_log}>&- </dev/null >>"$log" 2>&1 &
    board=$!
    set +m
    echo "TensorBoard: http://127.0.0.1:$port in a few seconds" \
        "(by hand: $venv_python -m tensorboard.main --logdir $output_dir --port $port)" >&"$to_log"
fi

while :; do # a trapped signal ends wait early: wait again until torchrun has ended
    wait "$torchrun"
    status=$?
    [ -n "$interrupted" ] && [ "$status" -gt 128 ] || break
    interrupted=""
done

if [ -n "$board" ] && [ -z "$keep_tensorboard" ]; then
    kill -- "-$board" 2>/dev/null
elif [ -n "$board" ]; then
    echo "TensorBoard runs on; stop it with: kill -- -$board" >&"$to_log"
    disown "$board"
fi
exec {to_log}>&-
for _ in {1..50}; do # tee has the last lines soon; a stray process that holds the pipe must not hold us
    kill -0 "$tee_pid" 2>/dev/null || break
    sleep 0.1
done
exit "$status"
