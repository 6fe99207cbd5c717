#!/usr/bin/env bash
# GRPO training of HunyuanOCR-1.5 on verl (FSDP2 actor, vLLM rollout, Ray).
#
#   bash train_grpo.sh                                    the embedded demo: tiny model, rendered pages, 3 steps
#   MODEL_PATH=… TRAIN_FILES=… VAL_FILES=… bash train_grpo.sh [--dry-run] [--skip-preflight] [-- hydra.key=value …]
#   bash train_grpo.sh --help                             every setting with its default
#
# Settings are environment variables, declared below with `knob NAME DEFAULT "meaning"`; whatever follows `--` goes to hydra
# unchanged and wins over everything here.
set -euo pipefail

KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
declare -a KNOB_NAMES=() KNOB_HELP=()

die() { printf 'train_grpo.sh: %s\n' "$*" >&2; exit 2; }
say() { printf '[train_grpo] %s\n' "$*"; }

# knob NAME DEFAULT "meaning": NAME keeps the user's value or gets DEFAULT. A line starting with # titles a group.
knob() {
  local name=$1 default=$2
  KNOB_NAMES+=("$name"); KNOB_HELP+=("$(printf '  %-28s %-26s %s' "$name" "${default:-(none)}" "$3")")
  [ -n "${!name+x}" ] && [ -n "${!name}" ] || printf -v "$name" '%s' "$default"
  export "${name?}"
}
group() { KNOB_HELP+=("" "$1"); }

# ---------------------------------------------------------------------------------------------- what the caller wants
DRY_RUN=0 SHOW_HELP=0 PREFLIGHT=1
declare -a HYDRA=()
while [ $# -gt 0 ]; do
  case $1 in
    -h|--help) SHOW_HELP=1 ;;
    --dry-run) DRY_RUN=1 ;;
    --skip-preflight) PREFLIGHT=0 ;;
    --) shift; HYDRA=("$@"); break ;;
    *) die "unknown argument '$1'. Hydra overrides go after --, e.g.: bash train_grpo.sh -- trainer.save_freq=5 (see --help)" ;;
  esac
  shift
done

DEMO=0
if [ -z "${MODEL_PATH:-}" ] && [ -z "${TRAIN_FILES:-}" ]; then DEMO=1; fi

# A machine without a GPU trains on the CPU platform of the fork (fp32, gloo, vLLM's CPU backend): for demo and debugging.
if [ -z "${VERL_PLATFORM:-}" ] && ! nvidia-smi >/dev/null 2>&1; then export VERL_PLATFORM=cpu; fi
ON_CPU=0; [ "${VERL_PLATFORM:-}" = cpu ] && ON_CPU=1

# ------------------------------------------------------------------------------------------------------------- demo
# The demo is a normal run with small settings: each is a default that the caller can still override.
DEMO_DIR=${DEMO_DIR:-$KIT/outputs/demo}
if [ $DEMO = 1 ]; then
  : "${NNODES:=1}" "${NGPUS_PER_NODE:=1}" "${TRAIN_BATCH_SIZE:=4}" "${PPO_MINI_BATCH_SIZE:=4}" "${ROLLOUT_N:=4}"
  : "${MAX_PROMPT_LENGTH:=128}" "${MAX_RESPONSE_LENGTH:=16}" "${MAX_MODEL_LEN:=256}" "${MAX_TOKENS_PER_GPU:=2048}"
  : "${LOGPROB_MAX_TOKENS_PER_GPU:=2048}" "${TOTAL_STEPS:=3}" "${SAVE_FREQ:=3}" "${TEST_FREQ:=3}" "${MAX_NUM_SEQS:=16}"
  : "${ACTOR_LR:=1e-4}" "${PROJECT_NAME:=demo}" "${EXPERIMENT_NAME:=tiny}" "${OUTPUT_DIR:=$DEMO_DIR/runs}" "${START_RAY:=$([ "$NNODES" = 1 ] && echo 1 || echo 0)}"
  : "${AGENT_WORKERS:=1}" "${REWARD_WORKERS:=1}" "${DATALOADER_WORKERS:=0}" "${GPU_MEMORY_UTILIZATION:=0.3}"
  : "${VAL_BEFORE_TRAIN:=False}" "${SAVE_HF_MODEL:=1}" "${ENFORCE_EAGER:=True}" "${WEIGHT_BUCKET_MB:=128}"
  : "${PARAM_OFFLOAD:=False}" "${OPTIMIZER_OFFLOAD:=False}" "${GRADIENT_CHECKPOINTING:=False}"
  MODEL_PATH=$DEMO_DIR/model TRAIN_FILES=$DEMO_DIR/data/train.parquet VAL_FILES=$DEMO_DIR/data/val.parquet
fi

# ---------------------------------------------------------------------------------------------------------- settings
group "Paths"
knob MODEL_PATH "" "HuggingFace folder of HunyuanOCR-1.5 (released layout)"
knob TRAIN_FILES "" "training parquet; several: comma-separated (data/prepare_data.py writes them)"
knob VAL_FILES "" "validation parquet; none: TRAIN_FILES is validated on and a warning says so"
knob OUTPUT_DIR "$KIT/outputs" "artefacts go to OUTPUT_DIR/PROJECT_NAME/EXPERIMENT_NAME"
knob PROJECT_NAME hyocr_1_5_verl "project"
knob EXPERIMENT_NAME hyocr_1_5_grpo "run; the same name resumes the run"
knob REWARD_FN_PATH "$KIT/reward_ocr.py" "file with the reward function"
knob REWARD_FN_NAME compute_score_async "its name; the async form keeps hundreds of judge calls in flight per worker"
knob RM_SYSTEM_JUDGE_MODEL_NAME Qwen/Qwen3-30B-A3B "judge model for Translation and VQA (reward/utils/judge_server_routes.json)"

knob HYOCR_MAX_DROP_RATE 0.5 "stop a run that drops more than this share of its samples in every step of the window"
knob HYOCR_DROP_WINDOW 5 "the window, in steps (docs/dropped_samples.md)"
knob HYOCR_HEALTH 1 "health metrics and warnings (docs/health.md); 0: none"
knob HYOCR_HEALTH_STOP nonfinite "conditions that end the run: nonfinite, logprob_gap, entropy, truncated, repetition, zero_variance, reward_time; all; none"
knob HYOCR_HEALTH_WINDOW 5 "steps in a row beyond a limit before it is an alarm"
knob HYOCR_HEALTH_MAX_LOGPROB_GAP 0.02 "limit: difference of actor's and rollout's mean log-prob of an answer"
knob HYOCR_HEALTH_MIN_ENTROPY_RATIO 0.2 "limit: entropy relative to the run's first steps"
knob HYOCR_HEALTH_MAX_TRUNCATED 0.3 "limit: share of answers cut at their maximal length"
knob HYOCR_HEALTH_MAX_REPETITION 0.1 "limit: share of answers that end in a loop"
knob HYOCR_HEALTH_MAX_ZERO_VARIANCE 0.8 "limit: share of groups with equal rewards"
knob HYOCR_HEALTH_MAX_REWARD_TIME 0.3 "limit: share of the step spent waiting for scores"

group "Cluster"
knob NNODES 1 "nodes"
knob NGPUS_PER_NODE 8 "GPUs (on the CPU platform: worker slots) per node"
knob RAY_ADDRESS auto "running Ray cluster to attach to; never stopped by this script"
knob START_RAY 0 "1: start a local Ray for this run and stop it afterwards (single node)"
knob SHIP_CODE 0 "1: Ray carries verl_hyocr, reward/ and the reward file to nodes that do not have this folder"
knob RAY_NUM_CPUS "" "with START_RAY=1: logical CPUs of that Ray (none: detected; the CPU platform needs 12)"

group "Batch and lengths"
knob TRAIN_BATCH_SIZE 128 "prompts per step"
knob PPO_MINI_BATCH_SIZE 128 "prompts per optimizer step; must divide TRAIN_BATCH_SIZE"
knob ROLLOUT_N 16 "answers per prompt: the group size"
knob MAX_PROMPT_LENGTH 8192 "prompt tokens, image tokens included; longer prompts are dropped from the data"
knob MAX_RESPONSE_LENGTH 8192 "answer tokens"
knob MAX_MODEL_LEN 16384 "context length of the rollout engine, at least prompt + response"
knob MAX_TOKENS_PER_GPU 16384 "token budget of a micro-batch in the update; at least the longest sample"
knob LOGPROB_MAX_TOKENS_PER_GPU 16384 "token budget of a micro-batch in the old and reference log-prob passes"
knob USE_DYNAMIC_BSZ True "pack micro-batches by tokens instead of by count"
knob USE_REMOVE_PADDING "$([ $ON_CPU = 1 ] && echo False || echo True)" "pack samples into one row instead of padding them (True on GPUs: faster and leaner)"
knob USE_FUSED_KERNELS True "log-probs of answer tokens only, without the logits of the whole batch"
knob BALANCE_BATCH True "even out tokens between ranks"
knob MAX_IMAGES 5 "images per prompt, at most"

group "Algorithm"
knob ACTOR_LR 1e-6 "learning rate"
knob USE_KL_LOSS True "KL to the reference policy in the loss"
knob KL_LOSS_COEF 0.001 "its weight"
knob KL_LOSS_TYPE low_var_kl "its estimator (k3)"
knob CLIP_RATIO_LOW 0.2 "PPO clip, lower"
knob CLIP_RATIO_HIGH 0.28 "PPO clip, upper (clip-higher)"
knob CLIP_RATIO_C 1.5 "dual clip: bound for negative advantages"
knob ROLLOUT_IS token "rollout correction: importance weights per token (none: off)"
knob ROLLOUT_IS_THRESHOLD 0.2_5.0 "IcePop: token weights outside low_high are zeroed"
knob ENTROPY_COEFF 0 "entropy bonus"
knob GRADIENT_CHECKPOINTING True "recompute activations in the backward pass"
knob PARAM_OFFLOAD True "parameters to host memory while the rollout runs"
knob OPTIMIZER_OFFLOAD True "optimizer state to host memory while idle"

group "Rollout"
knob TEMPERATURE 1.0 "sampling temperature"
knob TOP_P 1.0 "nucleus"
knob TOP_K -1 "-1: all tokens"
knob ROLLOUT_TP 1 "tensor parallel size of one rollout replica"
knob GPU_MEMORY_UTILIZATION 0.6 "share of GPU memory for the rollout engine"
knob MAX_NUM_SEQS 256 "sequences in one engine step"
knob ENABLE_CHUNKED_PREFILL False "chunked prefill"
knob FREE_CACHE_ENGINE True "free the KV cache between rollout phases"
knob ENFORCE_EAGER False "no CUDA graphs"
knob CALCULATE_LOG_PROBS True "log-probs from the rollout engine (needed for rollout correction)"
knob LOAD_FORMAT dummy "weights of the engine at start: dummy waits for the first sync (nothing to read), auto reads the checkpoint"
knob WEIGHT_BUCKET_MB 2048 "size of a weight-sync bucket"
knob WEIGHT_SYNC_CHECK_EVERY 0 "check every N-th weight sync down to the engine's weights (0: the first one only, -1: none)"
knob WEIGHT_SYNC_STRICT 0 "1: end the run when a checked weight sync finds anything (0: warn with the names)"
knob ADD_VISION_LOGIT_BIAS True "keep the six vision control tokens out of answers"
knob VISION_LOGIT_BIAS_VALUE -1e9 "added to their logits, in the rollout and in the actor; -1000 or below"
knob BAD_WORDS "" "words that never appear in answers, comma-separated"
knob AGENT_WORKERS 8 "agent-loop processes"
knob REWARD_WORKERS 8 "reward processes"
knob DATALOADER_WORKERS 8 "data loader processes"

group "Run"
knob TOTAL_EPOCHS 30 "epochs"
knob TOTAL_STEPS "" "stop after this many steps (none: all epochs)"
knob SAVE_FREQ 25 "steps between checkpoints"
knob TEST_FREQ 25 "steps between validations"
knob VAL_BEFORE_TRAIN True "validate before the first step"
knob MAX_CKPT_TO_KEEP "" "keep this many checkpoints (none: all)"
knob RESUME_MODE auto "auto: from the newest checkpoint; disable; or a path to a global_step_N folder"
knob SAVE_HF_MODEL 1 "also write HuggingFace weights with every checkpoint"
knob LOGGERS console,tensorboard,file "verl loggers"
knob SEED 1 "seed of data order and of DETERMINISTIC_ROLLOUT"
knob DETERMINISTIC_ROLLOUT "$([ $ON_CPU = 1 ] && echo True || echo False)" "seed every answer by SEED, step and sample: a resumed run samples as an uninterrupted one (on the CPU: True)"

group "Samples for RLLoggingBoard (docs/rl_logging_board.md)"
knob RLB_ENABLE 1 "write RUN_DIR/rl_logging_board/step_N.jsonl; 0: do not"
knob RLB_EVERY 1 "steps divisible by this are written"
knob RLB_MAX_SAMPLES 128 "samples of a step that are written, in whole groups from all tasks; 0: all"
knob RLB_MAX_RESPONSE_TOKENS 2048 "tokens of an answer that are written; 0: all"
knob RLB_FILE_SUFFIX "" "before .jsonl; _rank0 for the dddraxxx variant of the UI"

if [ $SHOW_HELP = 1 ]; then
  cat <<'HELP'
bash train_grpo.sh [--dry-run] [--skip-preflight] [--help] [-- hydra.key=value …]

  --dry-run         print the resolved command and the checked configuration; start nothing
  --skip-preflight  do not check model, data, reward, judge, memory, disk and nodes first (docs/preflight.md)
  --                everything after goes to verl's hydra configuration and wins

Without MODEL_PATH and TRAIN_FILES it runs the embedded demo (artefacts in outputs/demo; DEMO_DIR moves it).
Settings are environment variables:

  NAME                         DEFAULT                    MEANING
HELP
  printf '%s\n' "${KNOB_HELP[@]}"
  exit 0
fi

# ---------------------------------------------------------------------------------------- checks that cost nothing
is_int() { [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -gt 0 ]; }
for name in NNODES NGPUS_PER_NODE TRAIN_BATCH_SIZE PPO_MINI_BATCH_SIZE ROLLOUT_N MAX_PROMPT_LENGTH MAX_RESPONSE_LENGTH \
    MAX_MODEL_LEN MAX_TOKENS_PER_GPU LOGPROB_MAX_TOKENS_PER_GPU MAX_IMAGES ROLLOUT_TP MAX_NUM_SEQS WEIGHT_BUCKET_MB \
    AGENT_WORKERS REWARD_WORKERS TOTAL_EPOCHS; do
  is_int "${!name}" || die "$name must be a positive integer, got '${!name}'"
done
for name in TOTAL_STEPS MAX_CKPT_TO_KEEP RAY_NUM_CPUS; do
  [ -z "${!name}" ] || is_int "${!name}" || die "$name must be a positive integer or empty, got '${!name}'"
done
for name in SAVE_FREQ TEST_FREQ; do
  is_int "${!name}" || [ "${!name}" = -1 ] || die "$name must be a positive integer, or -1 for never; got '${!name}'"
done
[[ $DATALOADER_WORKERS =~ ^[0-9]+$ ]] || die "DATALOADER_WORKERS must be 0 or more, got '$DATALOADER_WORKERS'"
for name in ACTOR_LR KL_LOSS_COEF CLIP_RATIO_LOW CLIP_RATIO_HIGH CLIP_RATIO_C TEMPERATURE TOP_P GPU_MEMORY_UTILIZATION ENTROPY_COEFF; do
  [[ ${!name} =~ ^[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ ]] || die "$name must be a number, got '${!name}'"
done
for name in USE_DYNAMIC_BSZ USE_REMOVE_PADDING USE_FUSED_KERNELS BALANCE_BATCH USE_KL_LOSS GRADIENT_CHECKPOINTING PARAM_OFFLOAD OPTIMIZER_OFFLOAD \
    ENABLE_CHUNKED_PREFILL FREE_CACHE_ENGINE ENFORCE_EAGER CALCULATE_LOG_PROBS ADD_VISION_LOGIT_BIAS VAL_BEFORE_TRAIN DETERMINISTIC_ROLLOUT; do
  case ${!name} in
    True|true|1) printf -v "$name" True ;;
    False|false|0) printf -v "$name" False ;;
    *) die "$name must be True or False, got '${!name}'" ;;
  esac
done
for name in START_RAY SHIP_CODE SAVE_HF_MODEL; do
  case ${!name} in 0|1) ;; *) die "$name must be 0 or 1, got '${!name}'" ;; esac
done
[ $((TRAIN_BATCH_SIZE % PPO_MINI_BATCH_SIZE)) = 0 ] ||
  die "PPO_MINI_BATCH_SIZE=$PPO_MINI_BATCH_SIZE must divide TRAIN_BATCH_SIZE=$TRAIN_BATCH_SIZE"
LONGEST=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
[ "$MAX_MODEL_LEN" -ge $LONGEST ] || die "MAX_MODEL_LEN=$MAX_MODEL_LEN is below prompt + response = $LONGEST; set it to $LONGEST"
for name in MAX_TOKENS_PER_GPU LOGPROB_MAX_TOKENS_PER_GPU; do
  [ "${!name}" -ge $LONGEST ] || die "$name=${!name} cannot hold the longest sample ($LONGEST tokens); set it to $LONGEST"
done
[ $((NGPUS_PER_NODE % ROLLOUT_TP)) = 0 ] || die "ROLLOUT_TP=$ROLLOUT_TP must divide NGPUS_PER_NODE=$NGPUS_PER_NODE"
[ "$START_RAY" = 0 ] || [ "$NNODES" = 1 ] ||
  die "START_RAY=1 starts a single node; for NNODES=$NNODES start Ray on every node with utils/ray/start_ray.sh"
WORLD=$((NNODES * NGPUS_PER_NODE))
[ $((PPO_MINI_BATCH_SIZE * ROLLOUT_N % WORLD)) = 0 ] ||
  die "PPO_MINI_BATCH_SIZE x ROLLOUT_N = $((PPO_MINI_BATCH_SIZE * ROLLOUT_N)) must be a multiple of the $WORLD workers"

# -------------------------------------------------------------------------------------------------- environment
# PYTHON wins; then an active venv or conda environment that has the kit; then the kit's own .venv.
has_kit() { [ -x "$1" ] && "$1" -c 'import importlib.metadata as m; [m.version(n) for n in ("verl", "verl-hyocr", "ray")]' >/dev/null 2>&1; }
PY=""
for candidate in "${PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
    "$KIT/.venv/bin/python" "$(command -v python3 || true)"; do
  [ -n "$candidate" ] && has_kit "$candidate" && { PY=$candidate; break; }
done
if [ -z "$PY" ] && [ $DEMO = 1 ] && [ $DRY_RUN = 0 ]; then
  if [ $ON_CPU = 1 ]; then bash "$KIT/install_cpu.sh"; else bash "$KIT/install_cu13.sh"; fi
  PY=$KIT/.venv/bin/python
  [ -n "${VIRTUAL_ENV:-}" ] && has_kit "$VIRTUAL_ENV/bin/python" && PY=$VIRTUAL_ENV/bin/python
fi
if [ -z "$PY" ] || ! has_kit "$PY"; then
  die "no Python environment with the kit found. Run 'bash install_cu13.sh' (GPU) or 'bash install_cpu.sh' (CPU) first, or set PYTHON"
fi
PATH="$(dirname "$PY"):$PATH"
export PATH

export PYTHONPATH="$KIT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HYDRA_FULL_ERROR=1 RAY_DEDUP_LOGS=${RAY_DEDUP_LOGS:-1}
export VLLM_USE_V2_MODEL_RUNNER=${VLLM_USE_V2_MODEL_RUNNER:-0}
# Nothing leaves the machine unless the user asks for it.
export RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0} VLLM_NO_USAGE_STATS=${VLLM_NO_USAGE_STATS:-1} DO_NOT_TRACK=${DO_NOT_TRACK:-1}
# Without byte code every one of the many processes compiles torch, vLLM and verl again.
unset PYTHONDONTWRITEBYTECODE

if [ $DEMO = 1 ]; then
  say "MODEL_PATH and TRAIN_FILES are not set: running the embedded demo in $DEMO_DIR"
  if [ $DRY_RUN = 0 ]; then
    "$PY" -m utils.demo.build_model "$DEMO_DIR/model" --dtype "$([ $ON_CPU = 1 ] && echo float32 || echo bfloat16)"
    if [ ! -e "$VAL_FILES" ] || [ ! -e "$TRAIN_FILES" ]; then
      mkdir -p "$DEMO_DIR/data"
      "$PY" -m utils.demo.make_data "$DEMO_DIR/data" --count 30
      "$PY" "$KIT/data/prepare_data.py" --inputs "$DEMO_DIR/data/raw.jsonl" --output_train "$TRAIN_FILES" --output_val "$VAL_FILES" \
        --val_ratio 0.2
    fi
  fi
fi

# ------------------------------------------------------------------------------------------------------- the paths
[ -n "$MODEL_PATH" ] || die "TRAIN_FILES is set but MODEL_PATH is not: set it to the HunyuanOCR-1.5 folder"
[ -n "$TRAIN_FILES" ] || die "MODEL_PATH is set but TRAIN_FILES is not: set it to a parquet from data/prepare_data.py"
if [ $DEMO = 0 ] || [ $DRY_RUN = 0 ]; then
  [ -f "$MODEL_PATH/config.json" ] || die "MODEL_PATH=$MODEL_PATH has no config.json: is it a HuggingFace checkpoint folder?"
  IFS=, read -ra files <<<"$TRAIN_FILES,$VAL_FILES"
  for file in "${files[@]}"; do [ -z "$file" ] || [ -f "$file" ] || die "data file not found: $file"; done
fi
[ -f "$REWARD_FN_PATH" ] || die "REWARD_FN_PATH=$REWARD_FN_PATH does not exist"
if [ -z "$VAL_FILES" ]; then
  say "WARNING: VAL_FILES is not set; validating on the training files"
  VAL_FILES=$TRAIN_FILES
fi
OUTPUT_DIR=$(mkdir -p "$OUTPUT_DIR" && cd "$OUTPUT_DIR" && pwd) || die "OUTPUT_DIR=$OUTPUT_DIR cannot be created"
RUN_DIR=$OUTPUT_DIR/$PROJECT_NAME/$EXPERIMENT_NAME
list() { printf '["%s"]' "${1//,/\",\"}"; }

# --------------------------------------------------------------------------------------------- verl's configuration
case $RESUME_MODE in
  auto|disable) RESUME=(trainer.resume_mode="$RESUME_MODE") ;;
  *) [ -d "$RESUME_MODE" ] || die "RESUME_MODE must be auto, disable or a global_step_N folder, got '$RESUME_MODE'"
     RESUME=(trainer.resume_mode=resume_path trainer.resume_from_path="$RESUME_MODE") ;;
esac
SAVE_CONTENTS='["model","optimizer","extra"]'
[ "$SAVE_HF_MODEL" = 1 ] && SAVE_CONTENTS='["model","optimizer","extra","hf_model"]'

# Shipped code is imported by name: its folder on a worker is Ray's.
REWARD_MODULE=$REWARD_FN_PATH
if [ "$SHIP_CODE" = 1 ]; then
  REWARD_MODULE=$(basename "$REWARD_FN_PATH" .py)
  [[ $REWARD_MODULE =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || die "SHIP_CODE=1 imports the reward file by name: rename $REWARD_FN_PATH"
  REWARD_MODULE=pkg://$REWARD_MODULE
  PYTHONPATH=$(dirname "$REWARD_FN_PATH"):$PYTHONPATH
  export HYOCR_SHIP=$KIT/reward:$REWARD_FN_PATH
fi

A=actor_rollout_ref
# shellcheck disable=SC2206  # $A has no spaces
ARGS=(
  algorithm.adv_estimator=grpo
  algorithm.rollout_correction.rollout_is="$ROLLOUT_IS" algorithm.rollout_correction.rollout_is_threshold="'$ROLLOUT_IS_THRESHOLD'"
  data.train_files="$(list "$TRAIN_FILES")" data.val_files="$(list "$VAL_FILES")"
  data.train_batch_size="$TRAIN_BATCH_SIZE" data.max_prompt_length="$MAX_PROMPT_LENGTH" data.max_response_length="$MAX_RESPONSE_LENGTH"
  data.filter_overlong_prompts=True data.truncation=error data.image_key=images data.return_raw_chat=True
  data.dataloader_num_workers="$DATALOADER_WORKERS" data.seed="$SEED"
  $A.model.path="$MODEL_PATH" $A.model.external_lib=verl_hyocr.activate
  $A.model.use_remove_padding="$USE_REMOVE_PADDING" $A.model.use_fused_kernels="$USE_FUSED_KERNELS"
  $A.model.enable_gradient_checkpointing="$GRADIENT_CHECKPOINTING"
  $A.actor.strategy=fsdp2 $A.actor.optim.lr="$ACTOR_LR"
  $A.actor.ppo_mini_batch_size="$PPO_MINI_BATCH_SIZE" $A.actor.use_dynamic_bsz="$USE_DYNAMIC_BSZ"
  $A.actor.ppo_max_token_len_per_gpu="$MAX_TOKENS_PER_GPU"
  $A.actor.use_kl_loss="$USE_KL_LOSS" $A.actor.kl_loss_coef="$KL_LOSS_COEF" $A.actor.kl_loss_type="$KL_LOSS_TYPE"
  $A.actor.clip_ratio_low="$CLIP_RATIO_LOW" $A.actor.clip_ratio_high="$CLIP_RATIO_HIGH" $A.actor.clip_ratio_c="$CLIP_RATIO_C"
  $A.actor.entropy_coeff="$ENTROPY_COEFF" $A.actor.calculate_entropy=True
  $A.actor.fsdp_config.param_offload="$PARAM_OFFLOAD" $A.actor.fsdp_config.optimizer_offload="$OPTIMIZER_OFFLOAD"
  $A.actor.checkpoint.save_contents="$SAVE_CONTENTS" $A.actor.checkpoint.load_contents='["model","optimizer","extra"]'
  $A.ref.strategy=fsdp2 $A.ref.fsdp_config.param_offload="$PARAM_OFFLOAD"
  $A.ref.log_prob_use_dynamic_bsz="$USE_DYNAMIC_BSZ" $A.ref.log_prob_max_token_len_per_gpu="$LOGPROB_MAX_TOKENS_PER_GPU"
  $A.rollout.log_prob_use_dynamic_bsz="$USE_DYNAMIC_BSZ" $A.rollout.log_prob_max_token_len_per_gpu="$LOGPROB_MAX_TOKENS_PER_GPU"
  $A.rollout.name=vllm $A.rollout.mode=async $A.rollout.n="$ROLLOUT_N"
  $A.rollout.temperature="$TEMPERATURE" $A.rollout.top_p="$TOP_P" $A.rollout.top_k="$TOP_K"
  $A.rollout.tensor_model_parallel_size="$ROLLOUT_TP" $A.rollout.gpu_memory_utilization="$GPU_MEMORY_UTILIZATION"
  $A.rollout.max_model_len="$MAX_MODEL_LEN" $A.rollout.max_num_seqs="$MAX_NUM_SEQS"
  $A.rollout.max_num_batched_tokens="$MAX_MODEL_LEN" $A.rollout.enable_chunked_prefill="$ENABLE_CHUNKED_PREFILL"
  $A.rollout.free_cache_engine="$FREE_CACHE_ENGINE" $A.rollout.enforce_eager="$ENFORCE_EAGER"
  $A.rollout.calculate_log_probs="$CALCULATE_LOG_PROBS" $A.rollout.load_format="$LOAD_FORMAT"
  +$A.rollout.custom.add_vision_logit_bias="$ADD_VISION_LOGIT_BIAS"
  +$A.rollout.custom.vision_logit_bias_value="$VISION_LOGIT_BIAS_VALUE"
  +$A.rollout.limit_images="$MAX_IMAGES" $A.rollout.agent.num_workers="$AGENT_WORKERS"
  $A.rollout.checkpoint_engine.update_weights_bucket_megabytes="$WEIGHT_BUCKET_MB"
  reward.custom_reward_function.path="$REWARD_MODULE" reward.custom_reward_function.name="$REWARD_FN_NAME"
  reward.num_workers="$REWARD_WORKERS"
  trainer.nnodes="$NNODES" trainer.n_gpus_per_node="$NGPUS_PER_NODE" trainer.balance_batch="$BALANCE_BATCH"
  trainer.logger="$(list "$LOGGERS")" trainer.project_name="$PROJECT_NAME" trainer.experiment_name="$EXPERIMENT_NAME"
  trainer.total_epochs="$TOTAL_EPOCHS" trainer.total_training_steps="${TOTAL_STEPS:-null}"
  trainer.save_freq="$SAVE_FREQ" trainer.test_freq="$TEST_FREQ" trainer.val_before_train="$VAL_BEFORE_TRAIN"
  trainer.default_local_dir="$RUN_DIR/ckpt" trainer.max_actor_ckpt_to_keep="${MAX_CKPT_TO_KEEP:-null}"
  "${RESUME[@]}"
)
[ -z "$BAD_WORDS" ] || ARGS+=("+$A.rollout.custom.bad_words=$(list "$BAD_WORDS")")
if [ $ON_CPU = 1 ]; then
  # vLLM's CPU backend has no sleep mode and no CUDA graphs; torch.compile costs more than it saves on a tiny model.
  export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
  # On several nodes each node has its own: start_ray.sh sets them there.
  [ "$NNODES" != 1 ] || export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} VLLM_HOST_IP=${VLLM_HOST_IP:-127.0.0.1}
  # shellcheck disable=SC2206
  ARGS+=(
    trainer.device=cpu
    $A.actor.use_torch_compile=False $A.ref.use_torch_compile=False
    $A.actor.fsdp_config.use_torch_compile=False $A.ref.fsdp_config.use_torch_compile=False
    $A.actor.fsdp_config.model_dtype=fp32 $A.ref.fsdp_config.model_dtype=fp32
    +$A.actor.fsdp_config.mixed_precision.param_dtype=fp32 +$A.ref.fsdp_config.mixed_precision.param_dtype=fp32
    $A.rollout.dtype=float32 $A.rollout.free_cache_engine=False +$A.rollout.enable_sleep_mode=False $A.rollout.enforce_eager=True
    $A.rollout.gpu_memory_utilization=0.1
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1
  )
fi
# Network variables that the user exported go to the workers of all nodes; verl_hyocr.launch_env reads the list.
while IFS=$'\t' read -r name _; do
  case $name in '' | '#'*) continue ;; esac
  case " ${HYOCR_NET_SET:-} " in *" $name="*) continue ;; esac
  [ -z "${!name+x}" ] || HYOCR_FORWARD="${HYOCR_FORWARD:+$HYOCR_FORWARD }$name"
done <"$KIT/utils/ray/network_allowlist.txt"
export HYOCR_FORWARD=${HYOCR_FORWARD:-}
HYOCR_ROLLOUT_SEED=""
[ "$DETERMINISTIC_ROLLOUT" = False ] || HYOCR_ROLLOUT_SEED=$SEED
export HYOCR_ROLLOUT_SEED
COMMAND=("$PY" -m verl_hyocr.main "${ARGS[@]}" "${HYDRA[@]}")

if [ $DRY_RUN = 1 ]; then
  printf '%q ' "${COMMAND[@]}"; printf '\n\n'
  exec "$PY" -m verl_hyocr.dry_run "${ARGS[@]}" "${HYDRA[@]}"
fi

# --------------------------------------------------------------------------------------------------- one run a folder
mkdir -p "$RUN_DIR"/{ckpt,tensorboard,rl_logging_board}
exec 9>"$RUN_DIR/.lock"
flock -n 9 || die "another run is writing to $RUN_DIR (its lock is held). Choose another EXPERIMENT_NAME or wait for it."
if [ "$RESUME_MODE" = disable ] && compgen -G "$RUN_DIR/ckpt/global_step_*" >/dev/null; then
  die "$RUN_DIR/ckpt holds checkpoints and RESUME_MODE=disable would overwrite them. Choose another EXPERIMENT_NAME or move them."
fi
if [ "$RESUME_MODE" != disable ]; then
  "$PY" -m verl_hyocr.checkpoint "$RUN_DIR/ckpt" --world-size "$WORLD" --resume "$RESUME_MODE" ||
    die "this run cannot resume (see above, and docs/checkpoints.md)"
fi
export VERL_FILE_LOGGER_PATH=$RUN_DIR/metrics.jsonl TENSORBOARD_DIR=$RUN_DIR/tensorboard HYOCR_RUN_DIR=$RUN_DIR

# ------------------------------------------------------------------------------------------------------- preflight
# What needs Ray is checked together with the rest, or after its start where this script starts it.
preflight() {
  "$PY" -m utils.preflight --stage "$1" -- "${HYDRA[@]}" 9>&- ||
    die "the preflight found what would stop this run (FAIL above, each with its remedy; --skip-preflight goes on regardless)"
}
if [ $PREFLIGHT = 1 ]; then preflight "$([ "$START_RAY" = 1 ] && echo local || echo all)"; fi

# ------------------------------------------------------------------------------------------------------------- Ray
CHILD=""
finish() {
  local code=$?
  trap - EXIT INT TERM
  if [ -n "$CHILD" ] && kill -0 "$CHILD" 2>/dev/null; then kill -TERM "$CHILD" 2>/dev/null; wait "$CHILD" || code=$?; fi
  [ "${RAY_STARTED:-0}" = 0 ] || bash "$KIT/utils/ray/stop_ray.sh" --port "$RAY_PORT" 9>&- || say "stop_ray.sh reported a problem"
  exit "$code"
}
trap finish EXIT
# The trainer saves on the first SIGTERM and ends at once on the second signal; this script waits for it either way.
on_signal() {
  if [ -n "$CHILD" ]; then kill -"$1" "$CHILD" 2>/dev/null || true; else exit "$2"; fi
}
trap 'on_signal INT 130' INT
trap 'on_signal TERM 143' TERM
if [ "$START_RAY" = 1 ]; then
  RAY_PORT=${RAY_PORT:-$("$PY" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
  export RAY_PORT
  if [ $ON_CPU = 1 ]; then export RAY_LOGICAL_GPUS=$NGPUS_PER_NODE RAY_NUM_CPUS=${RAY_NUM_CPUS:-$((10 + 2 * NGPUS_PER_NODE))} NODE_IP=${NODE_IP:-127.0.0.1}; fi
  bash "$KIT/utils/ray/start_ray.sh" local 9>&- || die "Ray did not start (see above)"
  RAY_STARTED=1
  RAY_ADDRESS=${NODE_IP:-127.0.0.1}:$RAY_PORT
fi
export RAY_ADDRESS
if [ $PREFLIGHT = 0 ]; then
  "$PY" -m utils.cluster_check --nodes "$NNODES" --gpus-per-node "$NGPUS_PER_NODE" 9>&- ||
    die "no usable Ray cluster at RAY_ADDRESS=$RAY_ADDRESS. Start one with: bash utils/ray/start_ray.sh local   (or START_RAY=1)"
elif [ "$START_RAY" = 1 ]; then
  preflight cluster
fi

say "run folder: $RUN_DIR"
printf '\n===== %s  %s\n' "$(date -u +%FT%TZ)" "$(printf '%q ' "${COMMAND[@]}")" >>"$RUN_DIR/stdout.log"
# A signal for the whole process group must not take the log away from the trainer.
"${COMMAND[@]}" > >(trap '' INT TERM; exec tee -a "$RUN_DIR/stdout.log") 2>&1 9>&- &
CHILD=$!
CODE=0
while kill -0 "$CHILD" 2>/dev/null; do CODE=0; wait "$CHILD" || CODE=$?; done
# A signal can cut the wait short while the trainer ends: its own code is the one that counts.
OWN=0; wait "$CHILD" || OWN=$?
[ "$OWN" = 127 ] || CODE=$OWN
CHILD=""
case $CODE in
  0) say "done: $RUN_DIR" ;;
  75) say "stopped on request; the same command continues $RUN_DIR" ;;
  *) say "the trainer ended with exit code $CODE; see $RUN_DIR/stdout.log" ;;
esac
exit "$CODE"
