#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in parts that can be interrupted.
#
#   benchmarks/gpu.sh [PART ...]        all parts by default, in this order:
#
#   install       the package and, from the folder WHEELS, what is missing
#   oracles       every method against its NumPy transcription, on the GPU
#   checks        methods against the CPU, plans, repeated and resumed runs
#   rates         Newton-Schulz compared with a large product; the fastest plans; a GPT
#   race          seconds per round beside PyTorch's loop and torch.func.vmap
#   race_large    the same for ResNet-18 and ViT-Tiny in full size
#   table_2       paper 004, table 2: ResNet-18, Dirichlet(0.1), full CIFAR-100
#   figure_1      paper 001, figure 1: CIFAR-10
#
# Variables: OUT, the folder of results (runs/gpu); PYTHON (python3); MINUTES of a part
# (8); WORKERS, the processes that divide oracles and checks, which are not timed (1);
# DATA, the folder with cifar100 and cifar10, for the last two parts; WHEELS; SMALL=1
# rehearses all of it on a CPU in a few minutes. A part that was ended by its limit goes
# on where it was when it is called again; `benchmarks/gpu.sh` with the same OUT repeats
# nothing that is finished.
#
# A machine without a network needs wheels of what it lacks:
#
#   python3.12 -m pip wheel --no-deps --wheel-dir wheels .
#   python3.12 -m pip download --no-deps --dir wheels docstring-parser platformdirs ...
#   WHEELS=wheels benchmarks/gpu.sh
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-runs/gpu} PYTHON=${PYTHON:-python3} MINUTES=${MINUTES:-8}
WORKERS=${WORKERS:-1}
mkdir -p "$OUT"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ "${SMALL:-}" = 1 ]; then
    export JAX_PLATFORMS=cpu
    small=(--small) sizes=(--cohort 2 --clients 4 --steps 2 --batch 4 --repeats 1)
    sizes+=(--algorithms fedavg)
    full=() scale=smoke
else
    export JAX_PLATFORMS=cuda,cpu
    [ "$WORKERS" = 1 ] || export XLA_PYTHON_CLIENT_PREALLOCATE=false
    small=() sizes=(--repeats 10) full=(--full) scale=full
fi

# limited COMMAND...: ends it politely after MINUTES, so that it keeps what it has
limited() {
    echo "+ $*"
    timeout --signal=TERM --kill-after=30 "${MINUTES}m" "$@"
}

install() {
    [ -z "${WHEELS:-}" ] || "$PYTHON" -m pip install --quiet --no-index --no-deps \
        "$WHEELS"/*.whl
    "$PYTHON" -c "import fedjax_muon, jax; print(fedjax_muon.__version__, jax.devices())"
}

oracles() {
    local workers=()
    [ "$WORKERS" = 1 ] || workers=(-n "$WORKERS")
    # products in float32: the tolerances of the tests are those of float32
    JAX_DEFAULT_MATMUL_PRECISION=highest limited "$PYTHON" -m pytest -q \
        -p no:cacheprovider -o addopts= -o filterwarnings= "${workers[@]}" \
        tests/algorithms/test_oracles.py ${SMALL:+-k "fedavg and not fedavg_"} |
        tee "$OUT/oracles.txt"
}

checks() {
    local part pids=() status=0
    for ((part = 0; part < WORKERS; part++)); do
        limited "$PYTHON" -m benchmarks.gpu_checks methods plans repeats \
            "${small[@]}" --part "$part" --parts "$WORKERS" \
            --output "$OUT/checks.jsonl" &
        pids+=($!)
    done
    for part in "${pids[@]}"; do wait "$part" || status=1; done
    return "$status"
}

rates() {
    limited "$PYTHON" -m benchmarks.gpu_checks newton_schulz tune language "${small[@]}" \
        --output "$OUT/rates.jsonl"
}

race() {
    [ -e "$OUT/race.done" ] && return
    limited "$PYTHON" -m benchmarks w1 w2 femnist cifar10 "${sizes[@]}" \
        --peers torch_loop,torch_vmap --output "$OUT/race.jsonl" && touch "$OUT/race.done"
}

race_large() {
    [ -e "$OUT/race_large.done" ] && return
    limited "$PYTHON" -m benchmarks cifar100_resnet18 cifar100_vit_tiny "${sizes[@]}" \
        "${full[@]}" --peers torch_loop,torch_vmap --output "$OUT/race_large.jsonl" &&
        touch "$OUT/race_large.done"
}

paper() { # MODULE ITEM PANELS
    local data=()
    [ -z "${DATA:-}" ] || data=(--data-dir "$DATA")
    [ "$scale" = smoke ] || data+=(--panels "$3")
    limited "$PYTHON" -m "experiments.papers.$1" "$2" --scale "$scale" \
        "${data[@]}" --output "$OUT/$1-$2"
}

table_2() {
    paper fedmuon_004 table_2 resnet18_dir0.1
}

figure_1() {
    paper fedmuon_001 figure_1 cifar10_0.1,cifar10_10
}

failed=()
for part in ${*:-install oracles checks rates race race_large table_2 figure_1}; do
    if ! declare -F "$part" >/dev/null; then
        echo "no part $part; see the head of $0" >&2
        exit 2
    fi
    began=$SECONDS status=0
    "$part" || status=$?
    printf '{"part": "%s", "status": %d, "seconds": %d}\n' "$part" "$status" \
        $((SECONDS - began)) | tee -a "$OUT/parts.jsonl"
    [ "$status" = 0 ] || failed+=("$part")
done
if [ ${#failed[@]} != 0 ]; then
    echo "not finished: ${failed[*]}; call it again to go on" >&2
    exit 1
fi
