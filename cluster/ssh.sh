#!/bin/bash
# A run on several machines that are reached by ssh: starts the launcher on each of them and ends all when one ends badly.
#
#   cluster/ssh.sh 10.0.0.1 10.0.0.2 -- recipes/classify.py --batch.size 64 --output runs/mine
#
# Before -- the machines, as ssh knows them; process 0 is on the first, which writes the run folder. After -- the recipe and its
# arguments, as for `accelerate launch`. Start it in the project's folder, on any machine, one of these or not.
#
# What it needs: bash 4.4 or newer here and there, ssh without a password (an agent, or keys), this folder, the Python environment
# and the data at the same path on each machine (a shared file system, or copies), and a network on which the machines reach each
# other at all TCP ports.
#
# What may be set in the environment:
#   LAUNCH_FILE     the launch file (accelerate_configs/ddp_several_nodes.yaml)
#   PROCESSES       processes on each machine (1)
#   ADDRESS, PORT   where process 0 is found by the others (the first machine as given here, and 29500)
#   FOLDER          the project's folder on the machines (the one this is started in)
#   SETUP           a command that is run first on each machine (. .venv/bin/activate)
#   FINETUNE_TOOLKIT_CACHE   where tokenized data is kept (~/.cache/finetune-toolkit): on each machine's own disk, or on a shared
#                   file system, where one machine fills it and the others wait
#   GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME   the network device to use, where machines have several (eth0, ib0)
#
# Ctrl-C or SIGTERM asks the run to stop: it seals a checkpoint, and the same command goes on. A second Ctrl-C ends it at once. Where
# this script dies, or the connection to a machine, its launcher is asked to stop too. Exit code: 0 finished, 1 not;
# `toolkit status RUN` on the first machine tells which of 1, 2 and 75 it was.

set -euo pipefail

machines=()
while (($# > 0)) && [[ $1 != -- ]]; do
    machines+=("$1")
    shift
done
if ((${#machines[@]} == 0 || $# < 2)); then
    echo "usage: cluster/ssh.sh MACHINE ... -- RECIPE [ARGUMENT ...]" >&2
    exit 2
fi
shift

launch_file=${LAUNCH_FILE:-accelerate_configs/ddp_several_nodes.yaml}
folder=${FOLDER:-$PWD}
setup=${SETUP:-. .venv/bin/activate}
total=$((${PROCESSES:-1} * ${#machines[@]}))

# Runs on each machine: the launcher, and beside it what hears from here. The end of the connection counts as TERM.
# shellcheck disable=SC2016
there='
cd "$1" || exit 2
eval "$2" || exit 2
exec 3<&0 </dev/null
# With job control, what runs in the background hears INT as well.
set -m
"${@:3}" &
launcher=$!
set +m
{ while read -r signal; do kill -s "$signal" "$launcher"; done; kill -s TERM "$launcher"; } <&3 2>/dev/null &
listener=$!
code=0
wait "$launcher" || code=$?
{ kill "$listener" && wait "$listener"; } 2>/dev/null
exit "$code"
'

quoted() { # as every shell reads it
    local word
    for word in "$@"; do
        printf "'%s' " "${word//\'/\'\\\'\'}"
    done
}

own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT

settings=()
for name in FINETUNE_TOOLKIT_CACHE GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME ACCELERATE_USE_CPU; do
    [[ -z ${!name-} ]] || settings+=("$name=${!name}")
done

start() { # machine number, the recipe and its arguments
    local number=$1 code=0 pipe
    shift
    # Only this script may hold them: when it dies the connections end, and with them the launchers.
    for pipe in "${pipes[@]}"; do
        exec {pipe}>&-
    done
    local launcher=(env "${settings[@]}" accelerate launch --config_file "$launch_file" --num_machines "${#machines[@]}"
        --num_processes "$total" --machine_rank "$number" --main_process_ip "${ADDRESS:-${machines[0]#*@}}"
        --main_process_port "${PORT:-29500}" --rdzv_conf timeout=60 "$@")
    ssh -o BatchMode=yes -o ServerAliveInterval=10 "${machines[number]}" \
        "exec bash -c $(quoted "$there" launcher "$folder" "$setup" "${launcher[@]}")" <"$own/$number" || code=$?
    echo "$code" >"$own/$number.ended"
}

tell() { # a signal's name, to the launchers that still run
    local number
    for number in "${!machines[@]}"; do
        [[ -e $own/$number.ended ]] || echo "$1" >&"${pipes[number]}"
    done
}

pipes=()
for number in "${!machines[@]}"; do
    mkfifo "$own/$number"
    # Open for reading too, so that neither side waits for the other, and closed when this script dies.
    exec {pipe}<>"$own/$number"
    pipes[number]=$pipe
done
trap 'echo "the run is asked to stop" >&2; tell INT' INT
trap 'echo "the run is asked to stop" >&2; tell TERM' TERM
for number in "${!machines[@]}"; do
    start "$number" "$@" &
done

worst=0 told=no ended=0
while ((ended < ${#machines[@]})); do
    wait -n || true
    ended=0
    for number in "${!machines[@]}"; do
        [[ -s $own/$number.ended ]] || continue
        ended=$((ended + 1))
        code=$(<"$own/$number.ended")
        if ((code != 0 && worst == 0)); then
            worst=$code
            echo "${machines[number]}: the launcher ended with $code" >&2
        fi
    done
    if ((worst != 0 && ended < ${#machines[@]})) && [[ $told == no ]]; then
        told=yes
        tell TERM
    fi
done
exit "$worst"
