#!/usr/bin/env bash
# A tiny random Hy3 through verl's Megatron backend on one or two GPUs: Megatron-Bridge, vLLM, three steps a layout.
#
#   bash benchmarks/hy3_gpu.sh [--out DIR] [--layouts "pp2 ep2 …"] [--seconds 150]
#
# Layouts for two GPUs: tp2 pp2 ep2 cp2 dp2 (default: pp2 ep2 cp2 tp2); for one: one. The first saves a checkpoint and exports it
# to HuggingFace. DIR/summary.jsonl has a line a layout: the gap between actor and rollout, gradients, whether the routing
# biases are bit-equal, whether the export loads. Ends with 0 when every layout is well, 1 when one is not, 3 when a package is
# missing or does not import (its exact error is printed). Needs the environment of docs/hy3.md; PYTHON picks the interpreter.
# Each layout is stopped after --seconds, so that the default takes less than ten minutes.
set -euo pipefail

KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=/tmp/hy3_gpu LAYOUTS="" SECONDS_EACH=150
while [ $# -gt 0 ]; do
  case $1 in
    -h|--help) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --out) OUT=$2; shift ;;
    --layouts) LAYOUTS=$2; shift ;;
    --seconds) SECONDS_EACH=$2; shift ;;
    *) echo "hy3_gpu.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
  shift
done
PY=${PYTHON:-$KIT/.venv/bin/python}
command -v "$PY" >/dev/null || { echo "hy3_gpu.sh: no interpreter $PY; set PYTHON" >&2; exit 2; }
export PYTHON=$PY PYTHONPATH="$KIT${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || { echo "hy3_gpu.sh: no GPU" >&2; exit 3; }
GPUS=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
[ "$GPUS" -le 2 ] || GPUS=2
[ -n "$LAYOUTS" ] || { [ "$GPUS" = 2 ] && LAYOUTS="pp2 ep2 cp2 tp2" || LAYOUTS=one; }

# --------------------------------------------------------------------------------- what is installed, and does it import
"$PY" - <<'PYTHON' | tee "$OUT/environment.txt" || exit 3
import importlib, importlib.metadata, sys, traceback
print("python", sys.version.split()[0])
for name in ("torch", "vllm", "verl", "transformers", "megatron-core", "megatron-bridge", "transformer-engine",
             "transformer-engine-torch", "transformer-engine-cu13", "flash-attn", "apex", "nvidia-modelopt"):
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "not installed")
bad = []
for name in ("torch", "transformer_engine.pytorch", "megatron.core", "megatron.bridge", "verl.workers.engine.megatron", "vllm"):
    try:
        importlib.import_module(name)
    except BaseException:
        bad.append(name)
        print(f"--- {name} does not import:")
        traceback.print_exc(file=sys.stdout)
if bad:
    print("MISSING", *bad, "- see docs/hy3.md for the installation")
    sys.exit(3)
PYTHON

"$PY" "$KIT/verl/examples/hy3/build_tiny_model.py" "$OUT/model" --dtype bfloat16
"$PY" "$KIT/tests/hy3/bridge_check.py" "$OUT/model" 2>"$OUT/bridge.log" | grep '^BRIDGE' || {
  echo "the conversion alone failed:"; tail -5 "$OUT/bridge.log"
}
"$PY" - "$OUT" "$KIT" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[2] + "/verl/examples/hy3")
from hy3_rows import write_parquet
rows = [{"data_source": "math_dapo", "prompt": [{"role": "user", "content": f"What is {n}+1?"}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": str(n + 1)}, "extra_info": {"split": "train", "index": n}}
        for n in range(64)]
write_parquet(sys.argv[1] + "/train.parquet", rows)
write_parquet(sys.argv[1] + "/val.parquet", rows[:8])
PYTHON

# ----------------------------------------------------------------------------------------------------------------- Ray
RAY_PORT=$("$PY" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export RAY_PORT RAY_RUN_DIR=${RAY_RUN_DIR:-/tmp/hy3-ray-$$} NODE_IP=127.0.0.1
trap 'bash "$KIT/utils/ray/stop_ray.sh" --port "$RAY_PORT" >/dev/null 2>&1 || true' EXIT
bash "$KIT/utils/ray/start_ray.sh" local
export RAY_ADDRESS=127.0.0.1:$RAY_PORT

# ------------------------------------------------------------------------------------------------------------- layouts
: >"$OUT/summary.jsonl"
FIRST=1 CODE=0
for layout in $LAYOUTS; do
  TRAIN_TP=1 TRAIN_PP=1 TRAIN_EP=1 TRAIN_CP=1 ROLLOUT_TP=1 N=$GPUS
  case $layout in
    one) N=1 ;;
    tp2) TRAIN_TP=2 ROLLOUT_TP=2 ;;
    pp2) TRAIN_PP=2 ;;
    ep2) TRAIN_EP=2 ;;
    cp2) TRAIN_CP=2 ;;
    dp2) ;;
    *) echo "hy3_gpu.sh: unknown layout $layout" >&2; exit 2 ;;
  esac
  SAVE=-1; [ $FIRST = 0 ] || SAVE=3
  FIRST=0
  echo "===== $layout"
  START=$(date +%s) RC=0
  TRAIN_TP=$TRAIN_TP TRAIN_PP=$TRAIN_PP TRAIN_EP=$TRAIN_EP TRAIN_CP=$TRAIN_CP ROLLOUT_TP=$ROLLOUT_TP \
  MODEL_PATH=$OUT/model TRAIN_FILES=$OUT/train.parquet VAL_FILES=$OUT/val.parquet OUTPUT_DIR=$OUT/runs \
  PROJECT_NAME=hy3 EXPERIMENT_NAME=$layout NNODES=1 NGPUS_PER_NODE=$N RESUME_MODE=disable \
  TRAIN_BATCH_SIZE=8 PPO_MINI_BATCH_SIZE=8 ROLLOUT_N=8 MAX_PROMPT_LENGTH=64 MAX_RESPONSE_LENGTH=64 OVERLONG_BUFFER_LEN=48 \
  ACTOR_MAX_TOKENS_PER_GPU=2048 LOGPROB_MAX_TOKENS_PER_GPU=2048 GPU_MEMORY_UTILIZATION=0.3 MAX_NUM_SEQS=64 ENFORCE_EAGER=True \
  ACTOR_LR=1e-4 TOTAL_STEPS=3 SAVE_FREQ=$SAVE TEST_FREQ=-1 VAL_BEFORE_TRAIN=False AGENT_WORKERS=2 REWARD_WORKERS=2 \
  DATALOADER_WORKERS=0 WEIGHT_BUCKET_MB=64 LOGGERS=console,file ATTENTION_BACKEND=${ATTENTION_BACKEND:-fused} \
    timeout --signal=TERM --kill-after=20 "$SECONDS_EACH" \
    bash "$KIT/verl/examples/grpo_trainer/run_hy_v3_megatron.sh" >"$OUT/$layout.log" 2>&1 || RC=$?
  TOOK=$(($(date +%s) - START))
  if [ $RC != 0 ]; then
    CODE=1
    printf '{"layout": "%s", "exit_code": %s, "seconds": %s}\n' "$layout" "$RC" "$TOOK" | tee -a "$OUT/summary.jsonl"
    grep -nE 'Error|error:|Exception' "$OUT/$layout.log" | tail -5 || true
    tail -25 "$OUT/$layout.log"
    continue
  fi
  REPORT=$("$PY" "$KIT/verl/examples/hy3/report_run.py" "$OUT/runs/hy3/$layout" --start "$OUT/model" --json) || CODE=1
  printf '{"layout": "%s", "exit_code": 0, "seconds": %s, "report": %s}\n' "$layout" "$TOOK" "${REPORT:-null}" | tee -a "$OUT/summary.jsonl"
done
exit $CODE
