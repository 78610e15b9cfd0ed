# Sourced by run_safe_training.sh: TensorBoard beside a training run, without slowing it down or touching anyone's port.
# shellcheck shell=bash

free_port() { # FIRST: prints the first port from there on that nobody answers on
    local port
    for ((port = $1; port < $1 + 100; port++)); do
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return 0
        fi
    done
    return 1
}

serve_tensorboard() { # PYTHON LOGDIR PORT HOST: waits until the ranks are up, then serves at the lowest priority
    local python=$1 logdir=$2 port=$3 host=$4 status=255
    sleep "${TENSORBOARD_DELAY_S:-8}"
    while [ "$status" -eq 255 ]; do # 255: somebody took the port since we looked
        nice -n 19 "$python" -m tensorboard.main --logdir "$logdir" --host "$host" --port "$port" \
            >"$logdir/tensorboard.log" 2>&1
        status=$?
        if [ "$status" -eq 255 ]; then
            port=$(free_port $((port + 1))) || return
            echo "TensorBoard: http://127.0.0.1:$port (the first choice was taken)"
        fi
    done
}
