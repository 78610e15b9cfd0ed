#!/usr/bin/env bash
# Trains, measures and records: makes the environment when needed, checks the flags, starts one rank per GPU (two
# without a GPU; one process for all of --virtual_ranks) under torchrun, shows TensorBoard, keeps a log, and returns the
# training's exit code (2: a bad flag).
#
#   ./run_safe_training.sh                                  # a demonstration: both directions compressed
#   ./run_safe_training.sh --comm_compress topk --comm_config_json '{"ratio": 0.01}'
#   ./run_safe_training.sh --help                           # every flag
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$root/scripts/environment.sh"
source "$root/scripts/tensorboard.sh"

usage() {
    cat <<'TEXT'
usage: ./run_safe_training.sh [--nproc_per_node N] [--nnodes N --node_rank N --master_addr HOST [--master_port PORT]]
                              [--keep_tensorboard] [--tensorboard_host ADDRESS] [--config FILE.yaml] [--FLAG VALUE]...

Without any flag it shows what the project is for: the default model, with gradients and parameters compressed by
"int4 hadamard + delta" (on a machine with one GPU for two virtual ranks, --virtual_ranks 2). With flags nothing is
compressed that --method (or --comm_compress) does not name.

This script's own flags:
  --nproc_per_node N    ranks on this machine (default: the number of GPUs; 2 without one; 1 with --virtual_ranks)
  --nnodes N            machines that train together (default: 1); start the script on each, with the same flags but for
  --node_rank N         which of them this is, from 0
  --master_addr HOST    name or address of machine 0, as the others reach it
  --master_port PORT    a port that is free on machine 0 (default: 29500)
  --keep_tensorboard    let TensorBoard run on after the training
  --tensorboard_host A  address that TensorBoard listens on (default: 127.0.0.1, this machine alone; 0.0.0.0 shows the
                        runs to everyone who can reach this machine)

Every other flag goes to fsdp_lab.train:

TEXT
}

list_gpus() { # the names of those that the training will see, one a line
    local all entry line
    all=$(nvidia-smi -L 2>/dev/null | grep '^GPU ')
    if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then
        printf '%s' "$all"
    else # indices, or the beginnings of UUIDs; CUDA stops at the first that is none, such as -1
        for entry in ${CUDA_VISIBLE_DEVICES//,/ }; do
            case $entry in -*) break ;; esac
            line=$(grep -m 1 -e "^GPU $entry:" -e "(UUID: $entry" <<<"$all")
            echo "${line:-GPU: GPU $entry}"
        done
    fi | sed 's/^GPU[^:]*: //; s/ (UUID: .*//'
}

refuse() { # flag, value, what it wants
    echo "$1: got '$2' on the command line, wants $3" >&2
    refused=yes
}

want_number() { # flag, value, the least and (or none) the greatest
    local greatest=${4:-999999}
    [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ ]] && [ "$2" -ge "$3" ] && [ "$2" -le "$greatest" ] && return
    refuse "$1" "$2" "a whole number, $([ -n "${4-}" ] && echo "from $3 to $4" || echo "at least $3")"
}

demonstrated="int4 hadamard + delta" # the strongest pair that holds 1 % of PPL untuned (docs/findings/few-bits.md)
demonstration=""
mapfile -t gpus < <(list_gpus)
if [ $# = 0 ]; then
    demonstration=yes
    set -- --method "$demonstrated"
    [ ${#gpus[@]} != 1 ] || set -- "$@" --virtual_ranks 2 # a rank alone would send nothing
fi

# Flags: ours are taken out, the rest is passed on word for word.
ranks="" nodes=1 node="" master="" meeting_port="" keep_tensorboard="" board_host=127.0.0.1 flags=() refused=""
while [ $# -gt 0 ]; do
    flag=$1 value=""
    if [[ $1 == --* ]]; then # --node-rank=1 is --node_rank 1
        flag=${1%%=*} value=${2-}
        flag=${flag:2} flag=--${flag//-/_}
        [[ $1 == *=* ]] && value=${1#*=}
    fi
    value=${value:-(nothing)}
    case $flag in
        --nproc_per_node) ranks=$value ;;
        --nnodes) nodes=$value ;;
        --node_rank) node=$value ;;
        --master_addr) master=$value ;;
        --master_port) meeting_port=$value ;;
        --tensorboard_host) board_host=$value ;;
        *) # no value, or another's flag, which is passed on as it is
            case $1 in
                --keep_tensorboard | --keep-tensorboard) keep_tensorboard=yes ;;
                -h | --help) help=yes ;;
                *) flags+=("$1") ;;
            esac
            shift
            continue
            ;;
    esac
    [[ $1 == *=* ]] || shift
    [ $# -gt 0 ] && shift
done
[ -z "$ranks" ] || want_number --nproc_per_node "$ranks" 1
want_number --nnodes "$nodes" 1
if [ "$nodes" = 1 ] && [ -n "$node$master$meeting_port" ]; then
    echo "--node_rank, --master_addr, --master_port: for several machines; give --nnodes as well, or leave them out" >&2
    refused=yes
elif [[ $nodes =~ ^[1-9][0-9]*$ ]] && [ "$nodes" != 1 ]; then
    want_number --node_rank "${node:-(nothing)}" 0 $((nodes - 1))
    want_number --master_port "${meeting_port:=29500}" 1 65535
    [[ $master =~ ^[A-Za-z0-9._:-]+$ ]] || refuse --master_addr "${master:-(nothing)}" "machine 0's name or address"
fi
[[ $board_host =~ ^[A-Za-z0-9.:]+$ ]] || refuse --tensorboard_host "$board_host" "an address, such as 127.0.0.1"
[ -z "$refused" ] || exit 2

ensure_environment "$root" || exit
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if [ -n "${help-}" ]; then
    usage
    exec "$venv_python" -m fsdp_lab.settings check -- --help
fi

# A bad flag ends here, with one message, before any rank is started (torchrun would turn exit code 2 into 1).
settings=$("$venv_python" -m fsdp_lab.settings get output_dir tensorboard virtual_ranks -- ${flags[@]+"${flags[@]}"}) || exit
{ read -r output_dir && read -r tensorboard && read -r virtual_ranks; } <<<"$settings"
if [ "$nodes" != 1 ] && [ "$virtual_ranks" != 0 ]; then
    echo "--nnodes, --virtual_ranks: virtual ranks are one process on one machine; leave one of the two out" >&2
    exit 2
fi
mkdir -p "$output_dir" || exit 2

if [ "$virtual_ranks" != 0 ]; then
    ranks=${ranks:-1} started="process for $virtual_ranks virtual ranks"
else
    default=${#gpus[@]}
    ranks=${ranks:-$((default > 0 ? default : 2))}
    started=$([ "$ranks" = 1 ] && echo rank || echo ranks)
fi
log=$output_dir/training_log_safe_$(date +%Y%m%d_%H%M%S).txt
[ ! -e "$log" ] || log=${log%.txt}_$$.txt # two starts within one second
trap '' INT TERM HUP QUIT USR1 USR2 # for tee, from its first moment: a signal must not cost the last lines
exec {to_log}> >(exec tee -a "$log")
tee_pid=$!
# From here on a stop signal is torchrun's; one that comes before it runs waits for it.
torchrun="" early="" interrupted=""
pass_on() {
    interrupted=yes
    if [ -n "$torchrun" ]; then kill -s "$1" "$torchrun" 2>/dev/null; else early=$1; fi
}
for signal in TERM INT HUP QUIT USR1 USR2; do
    # shellcheck disable=SC2064
    trap "pass_on $signal" "$signal"
done

# torchrun gets its own process group (set -m), so that Ctrl-C reaches it once: through us, like every other signal.
# `--` ends its own flags: it would take --log or --max, abbreviations of its own, out of the training's. fsdp_lab.launch
# is torchrun that heeds every stop signal, and keeps the exit code of the rank that failed.
# On a terminal rank 0 draws its bar there, by name (torchrun's ranks have no /dev/tty), and logs plain lines.
if [ -t 1 ]; then
    { FSDP_LAB_TERMINAL=$(tty <&3) && export FSDP_LAB_LOG=$log FSDP_LAB_TERMINAL; } 3<&1
fi
set -m
meeting=(--standalone --local-addr=127.0.0.1)
[ "$nodes" = 1 ] || meeting=(--nnodes="$nodes" --node-rank="$node" --master-addr="$master" --master-port="$meeting_port")
"$venv_python" -m fsdp_lab.launch "${meeting[@]}" --nproc-per-node="$ranks" \
    -m -- fsdp_lab.train ${flags[@]+"${flags[@]}"} </dev/null >&"$to_log" 2>&1 &
torchrun=$!
set +m
if [ -n "$early" ]; then
    kill -s "$early" "$torchrun" 2>/dev/null
    interrupted=""
fi

if [ -n "$demonstration" ]; then
    echo "demonstration: gradients and parameters compressed by \"$demonstrated\"; any flag, such as --method none, trains as you say" >&"$to_log"
fi
if [ ${#gpus[@]} = 0 ]; then
    echo "no GPU: $ranks $started on the CPU; log: $log" >&"$to_log"
else
    for number in "${!gpus[@]}"; do echo "GPU $number: ${gpus[$number]}"; done >&"$to_log"
    echo "$ranks $started; log: $log" >&"$to_log"
fi
[ "$nodes" = 1 ] || echo "machine $node of $nodes; they meet at $master:$meeting_port" >&"$to_log"
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
