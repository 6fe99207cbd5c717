#!/usr/bin/env bash
# GRPO training of Hy3 (HYV3ForCausalLM, mixture of experts) on verl's Megatron backend: Megatron-Bridge converts the
# HuggingFace checkpoint when training starts, rollouts run on vLLM. Defaults are those of the published run: 16 nodes x 8 H20.
#
#   MODEL_PATH=/shared/Hy3 DATA_DIR=/shared/data bash verl/examples/grpo_trainer/run_hy_v3_megatron.sh [--dry-run] [-- key=value …]
#   bash verl/examples/grpo_trainer/run_hy_v3_megatron.sh --help          every setting with its default
#   BACKEND=fsdp2 VERL_PLATFORM=cpu MODEL_PATH=tiny …                     the same algorithm without GPUs, for a tiny model
#
# Settings are environment variables, declared below with `knob NAME DEFAULT "meaning"`; whatever follows `--` goes to hydra
# unchanged and wins over everything here. It attaches to a running Ray cluster. The page is docs/hy3.md.
set -euo pipefail

KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
declare -a KNOB_NAMES=() KNOB_HELP=()

die() { printf 'run_hy_v3_megatron.sh: %s\n' "$*" >&2; exit 2; }
say() { printf '[hy3] %s\n' "$*"; }

# knob NAME DEFAULT "meaning": NAME keeps the user's value or gets DEFAULT. group titles what follows.
knob() {
  local name=$1 default=$2
  KNOB_NAMES+=("$name"); KNOB_HELP+=("$(printf '  %-28s %-24s %s' "$name" "${default:-(none)}" "$3")")
  [ -n "${!name+x}" ] && [ -n "${!name}" ] || printf -v "$name" '%s' "$default"
  export "${name?}"
}
group() { KNOB_HELP+=("" "$1"); }

DRY_RUN=0 SHOW_HELP=0 PRINT_ONLY=0
declare -a HYDRA=()
while [ $# -gt 0 ]; do
  case $1 in
    -h|--help) SHOW_HELP=1 ;;
    --dry-run) DRY_RUN=1 ;;
    --print-overrides) DRY_RUN=1 PRINT_ONLY=1 ;;
    --) shift; HYDRA=("$@"); break ;;
    *) die "unknown argument '$1'. Hydra overrides go after --, e.g.: -- trainer.save_freq=5 (see --help)" ;;
  esac
  shift
done
ON_CPU=0; [ "${VERL_PLATFORM:-}" = cpu ] && ON_CPU=1

# ---------------------------------------------------------------------------------------------------------- settings
group "Paths"
knob DATA_DIR "$PWD" "folder with the default data files, as prepare_data.py writes them"
knob TRAIN_FILES "$DATA_DIR/DAPO-Math-17k/dapo-math-17k.parquet" "training parquet; several: comma-separated"
knob VAL_FILES "$DATA_DIR/AIME-2024/aime-2024.parquet" "validation parquet"
knob MODEL_PATH "" "HuggingFace folder of Hy3, the same path on every node"
knob OUTPUT_DIR "$KIT/outputs" "artefacts go to OUTPUT_DIR/PROJECT_NAME/EXPERIMENT_NAME"
knob PROJECT_NAME hy3_grpo "project"
knob EXPERIMENT_NAME hy3_dapo_math "run; the same name resumes the run"
knob REWARD_FN_PATH "" "file with a reward function of your own (none: verl's rule for the row's data_source)"
knob REWARD_FN_NAME compute_score "its name"

group "Cluster"
knob NNODES 16 "nodes"
knob NGPUS_PER_NODE 8 "GPUs (on the CPU platform: worker slots) per node"
knob RAY_ADDRESS auto "running Ray cluster to attach to"

group "Training: layout"
knob BACKEND megatron "megatron, or fsdp2 for a model that one node holds (no layout settings then)"
knob TRAIN_TP 1 "tensor parallel size of attention and dense layers"
knob TRAIN_PP 16 "pipeline stages; divides the layers (Hy3: 80)"
knob TRAIN_EP 8 "expert parallel size; divides the experts (Hy3: 192)"
knob TRAIN_CP 8 "context parallel size: a sequence is split over so many GPUs"
knob TRAIN_ETP 1 "tensor parallel size of an expert"
knob FIRST_STAGE_LAYERS 0 "layers of the first pipeline stage when it is uneven (0: even)"
knob LAST_STAGE_LAYERS 0 "the same for the last"

group "Training: memory"
knob PARAM_OFFLOAD True "parameters to host memory while idle; gradient buffers are freed with them"
knob OPTIMIZER_OFFLOAD True "optimizer state to host memory while idle"
knob OPTIMIZER_CPU_OFFLOAD False "Adam on the host: the state never comes to the GPU (slower)"
knob MICRO_BATCH_SIZE 2 "samples of a micro-batch on a GPU without dynamic batches"
knob USE_DYNAMIC_BSZ True "pack micro-batches by tokens instead of by count"
knob ACTOR_MAX_TOKENS_PER_GPU 30720 "token budget of a micro-batch in the update, on one GPU"
knob LOGPROB_MAX_TOKENS_PER_GPU 40960 "the same in the log-prob passes"
knob RECOMPUTE_GRANULARITY full "activations: full, selective, or none"
knob RECOMPUTE_METHOD uniform "uniform or block"
knob RECOMPUTE_NUM_LAYERS 1 "layers of one recomputed group"
knob USE_REMOVE_PADDING "$([ $ON_CPU = 1 ] && echo False || echo True)" "pack samples instead of padding them"

group "Rollout"
knob ROLLOUT_TP 16 "GPUs of one vLLM replica (16: the least that holds Hy3 on H20)"
knob GPU_MEMORY_UTILIZATION 0.65 "share of GPU memory for the rollout engine"
knob ROLLOUT_N 16 "answers per prompt: the group size"
knob ENABLE_CHUNKED_PREFILL True "chunked prefill"
knob MAX_NUM_SEQS 256 "sequences in one engine step"
knob ENFORCE_EAGER False "no CUDA graphs"
knob TEMPERATURE 0.9 "sampling temperature"
knob TOP_P 1.0 "nucleus"
knob TOP_K -1 "-1: all tokens"
knob VAL_TEMPERATURE 0.9 "sampling temperature of the validation"
knob VAL_TOP_P 1.0 "its nucleus"
knob VAL_N 1 "answers per validation prompt"
knob AGENT_WORKERS 8 "agent-loop processes"
knob REWARD_WORKERS 8 "reward processes"
knob WEIGHT_BUCKET_MB 2048 "size of a weight-sync bucket"

group "Data"
knob TRAIN_BATCH_SIZE 128 "prompts per step"
knob PPO_MINI_BATCH_SIZE 128 "prompts per optimizer step; must divide TRAIN_BATCH_SIZE"
knob MAX_PROMPT_LENGTH 2048 "prompt tokens; longer prompts leave the data"
knob MAX_RESPONSE_LENGTH 8192 "answer tokens"
knob MAX_MODEL_LEN "$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))" "context length of the rollout engine, at least prompt + response"
knob OVERLONG_BUFFER True "DAPO's penalty for answers that near the limit"
knob OVERLONG_BUFFER_LEN 4096 "it grows over the last so many tokens"
knob OVERLONG_PENALTY 1.0 "up to this much"
knob DATALOADER_WORKERS 8 "data loader processes"
knob SEED 1 "seed of data order"

group "Algorithm"
knob ADV_ESTIMATOR grpo "advantage: gae (PPO with a critic), grpo, rloo, remax, reinforce_plus_plus, opo, gpg, …"
knob LOSS_MODE vanilla "policy loss: vanilla, gspo, cispo, clip_cov, kl_cov, geo_mean, …"
knob LOSS_AGG_MODE seq-mean-token-mean "how token losses become one number"
knob NORM_ADV_BY_STD False "divide advantages by the group's standard deviation"
knob CLIP_RATIO_LOW 0.2 "PPO clip, lower"
knob CLIP_RATIO_HIGH 0.28 "PPO clip, upper (clip-higher)"
knob CLIP_RATIO_C 10.0 "dual clip: bound for negative advantages"
knob USE_KL_LOSS False "KL to the reference policy in the loss (a reference model is loaded then)"
knob KL_LOSS_COEF 0.0 "its weight"
knob KL_LOSS_TYPE low_var_kl "its estimator (k3)"
knob ENTROPY_COEFF 0 "entropy bonus"
knob ROLLOUT_IS token "rollout correction: importance weights per token (none: off)"
knob ROLLOUT_IS_THRESHOLD 0.5_4.0 "IcePop: token weights outside low_high are zeroed"
knob ACTOR_LR 1e-6 "learning rate"
knob LR_WARMUP_STEPS 0 "steps of linear warm-up"
knob WEIGHT_DECAY 0.01 "weight decay"
knob CLIP_GRAD 1.0 "bound of the gradient norm"
knob CRITIC_LR 1e-5 "learning rate of the critic (gae)"

group "Mixture of experts"
knob MOE_EXPERT_BIAS True "Hy3 routes with a bias per expert; anything else is another model"
knob MOE_BIAS_UPDATE_RATE 0 "0 freezes that bias: it takes part in routing and is never changed"
knob MOE_LOAD_BALANCING none "no auxiliary balancing loss"
knob MOE_GROUPED_GEMM True "all experts of a GPU in one matrix product (Transformer Engine)"
knob MOE_PERMUTE_FUSION True "fused token permutation (Transformer Engine)"
knob MOE_DISPATCHER alltoall "how tokens travel to their experts"
knob ROPE_FUSION True "fused rotary embedding"
knob MASKED_SOFTMAX_FUSION True "fused masked softmax"
knob BIAS_ACTIVATION_FUSION True "fused bias and activation"
knob BIAS_DROPOUT_FUSION True "fused bias and dropout"
knob GRADIENT_ACCUMULATION_FUSION "" "fused weight gradients; needs APEX (none: on when APEX is there)"
knob ATTENTION_BACKEND flash "flash, fused, unfused, local or auto"
knob TRANSFORMER_IMPL "" "transformer_engine or local (none: Megatron-Bridge decides); see docs/hy3.md for local"

group "Run"
knob TOTAL_EPOCHS 10 "epochs"
knob TOTAL_STEPS "" "stop after this many steps (none: all epochs)"
knob SAVE_FREQ 20 "steps between checkpoints"
knob TEST_FREQ 10 "steps between validations"
knob VAL_BEFORE_TRAIN True "validate before the first step"
knob MAX_CKPT_TO_KEEP "" "keep this many checkpoints (none: all)"
knob RESUME_MODE auto "auto: from the newest checkpoint; disable; or a path to a global_step_N folder"
knob SAVE_HF_MODEL 1 "also write HuggingFace weights with every checkpoint"
knob LOGGERS console,tensorboard,file "verl loggers"
knob PREFLIGHT 1 "0: do not check layout, lengths and memory before the start"
knob GPU_MEMORY_GIB "" "memory of a GPU for these checks (none: asked of nvidia-smi)"
knob HOST_MEMORY_GIB "" "memory of a node for these checks (none: not checked)"

if [ $SHOW_HELP = 1 ]; then
  cat <<'HELP'
bash verl/examples/grpo_trainer/run_hy_v3_megatron.sh [--dry-run] [--help] [-- hydra.key=value …]

  --dry-run         check the layout, print the resolved command and the composed configuration; start nothing
  --print-overrides print verl's hydra overrides, one a line, to carry the settings into a recipe of your own; start nothing
  --                everything after goes to verl's hydra configuration and wins

Settings are environment variables:

  NAME                         DEFAULT                  MEANING
HELP
  printf '%s\n' "${KNOB_HELP[@]}"
  exit 0
fi

# ---------------------------------------------------------------------------------------- checks that cost nothing
is_int() { [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -gt 0 ]; }
for name in NNODES NGPUS_PER_NODE TRAIN_TP TRAIN_PP TRAIN_EP TRAIN_CP TRAIN_ETP MICRO_BATCH_SIZE ACTOR_MAX_TOKENS_PER_GPU \
    LOGPROB_MAX_TOKENS_PER_GPU RECOMPUTE_NUM_LAYERS ROLLOUT_TP ROLLOUT_N MAX_NUM_SEQS VAL_N AGENT_WORKERS REWARD_WORKERS \
    WEIGHT_BUCKET_MB TRAIN_BATCH_SIZE PPO_MINI_BATCH_SIZE MAX_PROMPT_LENGTH MAX_RESPONSE_LENGTH MAX_MODEL_LEN \
    OVERLONG_BUFFER_LEN TOTAL_EPOCHS; do
  is_int "${!name}" || die "$name must be a positive integer, got '${!name}'"
done
for name in TOTAL_STEPS MAX_CKPT_TO_KEEP; do
  [ -z "${!name}" ] || is_int "${!name}" || die "$name must be a positive integer or empty, got '${!name}'"
done
for name in SAVE_FREQ TEST_FREQ; do
  is_int "${!name}" || [ "${!name}" = -1 ] || die "$name must be a positive integer, or -1 for never; got '${!name}'"
done
for name in FIRST_STAGE_LAYERS LAST_STAGE_LAYERS DATALOADER_WORKERS LR_WARMUP_STEPS SEED; do
  [[ ${!name} =~ ^[0-9]+$ ]] || die "$name must be 0 or more, got '${!name}'"
done
for name in GPU_MEMORY_UTILIZATION TEMPERATURE TOP_P VAL_TEMPERATURE VAL_TOP_P OVERLONG_PENALTY CLIP_RATIO_LOW CLIP_RATIO_HIGH \
    CLIP_RATIO_C KL_LOSS_COEF ENTROPY_COEFF ACTOR_LR WEIGHT_DECAY CLIP_GRAD CRITIC_LR MOE_BIAS_UPDATE_RATE; do
  [[ ${!name} =~ ^[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ ]] || die "$name must be a number, got '${!name}'"
done
for name in PARAM_OFFLOAD OPTIMIZER_OFFLOAD OPTIMIZER_CPU_OFFLOAD USE_DYNAMIC_BSZ USE_REMOVE_PADDING ENABLE_CHUNKED_PREFILL \
    ENFORCE_EAGER OVERLONG_BUFFER NORM_ADV_BY_STD USE_KL_LOSS MOE_EXPERT_BIAS MOE_GROUPED_GEMM MOE_PERMUTE_FUSION ROPE_FUSION \
    MASKED_SOFTMAX_FUSION BIAS_ACTIVATION_FUSION BIAS_DROPOUT_FUSION GRADIENT_ACCUMULATION_FUSION VAL_BEFORE_TRAIN; do
  case ${!name} in
    True|true|1) printf -v "$name" True ;;
    False|false|0) printf -v "$name" False ;;
    "") [ $name = GRADIENT_ACCUMULATION_FUSION ] || die "$name must be True or False" ;;
    *) die "$name must be True or False, got '${!name}'" ;;
  esac
  export "${name?}"
done
one_of() {
  local name=$1 word; shift
  for word in "$@"; do [ "${!name}" != "$word" ] || return 0; done
  die "$name must be one of: $*; got '${!name}'"
}
one_of BACKEND megatron fsdp2
one_of RECOMPUTE_GRANULARITY full selective none
one_of SAVE_HF_MODEL 0 1
one_of PREFLIGHT 0 1
one_of ADV_ESTIMATOR gae grpo grpo_vectorized grpo_passk rloo rloo_vectorized remax reinforce_plus_plus \
  reinforce_plus_plus_baseline opo gpg optimal_token_baseline tir_optimal_token_baseline
one_of LOSS_MODE vanilla gspo cispo clip_cov kl_cov geo_mean gpg sapo dppo_tv dppo_kl
if [ -n "${GRAD_OFFLOAD:-}" ]; then
  case $GRAD_OFFLOAD/$PARAM_OFFLOAD in
    True/True|true/True|1/True|False/False|false/False|0/False) say "GRAD_OFFLOAD: gradient buffers follow PARAM_OFFLOAD in this verl" ;;
    *) die "GRAD_OFFLOAD=$GRAD_OFFLOAD: this verl frees gradient buffers with PARAM_OFFLOAD ($PARAM_OFFLOAD); set that one" ;;
  esac
fi
if [ "$MOE_EXPERT_BIAS" != True ] || [ "$MOE_BIAS_UPDATE_RATE" != 0 ]; then
  say "WARNING: Hy3 was trained with MOE_EXPERT_BIAS=True and is fine-tuned with MOE_BIAS_UPDATE_RATE=0; this run differs"
fi
[ "$OVERLONG_BUFFER" = False ] || [ "$OVERLONG_BUFFER_LEN" -le "$MAX_RESPONSE_LENGTH" ] ||
  die "OVERLONG_BUFFER_LEN=$OVERLONG_BUFFER_LEN is longer than MAX_RESPONSE_LENGTH=$MAX_RESPONSE_LENGTH; lower it or set OVERLONG_BUFFER=False"
LONGEST=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
[ "$MAX_MODEL_LEN" -ge $LONGEST ] || die "MAX_MODEL_LEN=$MAX_MODEL_LEN is below prompt + response = $LONGEST; set it to $LONGEST"
[ $((TRAIN_BATCH_SIZE % PPO_MINI_BATCH_SIZE)) = 0 ] ||
  die "PPO_MINI_BATCH_SIZE=$PPO_MINI_BATCH_SIZE must divide TRAIN_BATCH_SIZE=$TRAIN_BATCH_SIZE"

# -------------------------------------------------------------------------------------------------- environment
has_kit() { [ -x "$1" ] && "$1" -c 'import importlib.metadata as m; [m.version(n) for n in ("verl", "ray")]' >/dev/null 2>&1; }
PY=""
for candidate in "${PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
    "$KIT/.venv/bin/python" "$(command -v python3 || true)"; do
  [ -n "$candidate" ] && has_kit "$candidate" && { PY=$candidate; break; }
done
[ -n "$PY" ] || die "no Python environment with verl and ray found. See docs/hy3.md for its installation, or set PYTHON"
PATH="$(dirname "$PY"):$PATH"
export PATH
export PYTHONPATH="$KIT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HYDRA_FULL_ERROR=1 RAY_DEDUP_LOGS=${RAY_DEDUP_LOGS:-1}
export RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0} VLLM_NO_USAGE_STATS=${VLLM_NO_USAGE_STATS:-1} DO_NOT_TRACK=${DO_NOT_TRACK:-1}
if [ $ON_CPU = 0 ] && ! nvidia-smi >/dev/null 2>&1 && [ $DRY_RUN = 0 ]; then
  say "no GPU on this host; workers need GPUs unless VERL_PLATFORM=cpu"
fi

# ------------------------------------------------------------------------------------------------------- the paths
if [ $DRY_RUN = 0 ]; then
  [ -n "$MODEL_PATH" ] || die "MODEL_PATH is not set: the HuggingFace folder of Hy3"
  [ -f "$MODEL_PATH/config.json" ] || die "MODEL_PATH=$MODEL_PATH has no config.json: is it a HuggingFace checkpoint folder?"
  IFS=, read -ra files <<<"$TRAIN_FILES,$VAL_FILES"
  for file in "${files[@]}"; do
    [ -f "$file" ] || die "data file not found: $file. Write it with verl/examples/hy3/prepare_data.py, or set DATA_DIR, TRAIN_FILES, VAL_FILES"
  done
fi
[ -z "$REWARD_FN_PATH" ] || [ -f "$REWARD_FN_PATH" ] || die "REWARD_FN_PATH=$REWARD_FN_PATH does not exist"
RUN_DIR=$OUTPUT_DIR/$PROJECT_NAME/$EXPERIMENT_NAME
list() { printf '["%s"]' "${1//,/\",\"}"; }

# --------------------------------------------------------------------------------------------- layout, lengths, memory
if [ "$PREFLIGHT" = 1 ] && [ "$BACKEND" = megatron ] && [ $PRINT_ONLY = 0 ]; then
  (cd "$KIT" && "$PY" -m utils.preflight.megatron) || die "this layout cannot run (see above; PREFLIGHT=0 skips the check)"
fi

# --------------------------------------------------------------------------------------------- verl's configuration
case $RESUME_MODE in
  auto|disable) RESUME=(trainer.resume_mode="$RESUME_MODE") ;;
  *) [ -d "$RESUME_MODE" ] || die "RESUME_MODE must be auto, disable or a global_step_N folder, got '$RESUME_MODE'"
     RESUME=(trainer.resume_mode=resume_path trainer.resume_from_path="$RESUME_MODE") ;;
esac
SAVE_CONTENTS='["model","optimizer","extra"]'
[ "$SAVE_HF_MODEL" = 1 ] && SAVE_CONTENTS='["model","optimizer","extra","hf_model"]'

A=actor_rollout_ref
# shellcheck disable=SC2206  # $A has no spaces
ARGS=(
  algorithm.adv_estimator="$ADV_ESTIMATOR" algorithm.norm_adv_by_std_in_grpo="$NORM_ADV_BY_STD"
  algorithm.use_kl_in_reward=False
  algorithm.rollout_correction.rollout_is="$ROLLOUT_IS" algorithm.rollout_correction.rollout_is_threshold="'$ROLLOUT_IS_THRESHOLD'"
  data.train_files="$(list "$TRAIN_FILES")" data.val_files="$(list "$VAL_FILES")"
  data.train_batch_size="$TRAIN_BATCH_SIZE" data.max_prompt_length="$MAX_PROMPT_LENGTH" data.max_response_length="$MAX_RESPONSE_LENGTH"
  data.filter_overlong_prompts=True data.truncation=error data.return_raw_chat=True data.trust_remote_code=True
  data.dataloader_num_workers="$DATALOADER_WORKERS" data.seed="$SEED"
  $A.model.path="${MODEL_PATH:-MODEL_PATH}" $A.model.trust_remote_code=True $A.model.use_remove_padding="$USE_REMOVE_PADDING"
  $A.actor.optim.lr="$ACTOR_LR" $A.actor.optim.lr_warmup_steps="$LR_WARMUP_STEPS" $A.actor.optim.weight_decay="$WEIGHT_DECAY"
  $A.actor.ppo_mini_batch_size="$PPO_MINI_BATCH_SIZE" $A.actor.ppo_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"
  $A.actor.use_dynamic_bsz="$USE_DYNAMIC_BSZ" $A.actor.ppo_max_token_len_per_gpu="$ACTOR_MAX_TOKENS_PER_GPU"
  $A.actor.policy_loss.loss_mode="$LOSS_MODE" $A.actor.loss_agg_mode="$LOSS_AGG_MODE"
  $A.actor.use_kl_loss="$USE_KL_LOSS" $A.actor.kl_loss_coef="$KL_LOSS_COEF" $A.actor.kl_loss_type="$KL_LOSS_TYPE"
  $A.actor.clip_ratio_low="$CLIP_RATIO_LOW" $A.actor.clip_ratio_high="$CLIP_RATIO_HIGH" $A.actor.clip_ratio_c="$CLIP_RATIO_C"
  $A.actor.entropy_coeff="$ENTROPY_COEFF"
  $A.actor.checkpoint.save_contents="$SAVE_CONTENTS" $A.actor.checkpoint.load_contents='["model","optimizer","extra"]'
  $A.ref.log_prob_use_dynamic_bsz="$USE_DYNAMIC_BSZ" $A.ref.log_prob_max_token_len_per_gpu="$LOGPROB_MAX_TOKENS_PER_GPU"
  $A.ref.log_prob_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"
  $A.rollout.log_prob_use_dynamic_bsz="$USE_DYNAMIC_BSZ" $A.rollout.log_prob_max_token_len_per_gpu="$LOGPROB_MAX_TOKENS_PER_GPU"
  $A.rollout.log_prob_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"
  $A.rollout.name=vllm $A.rollout.mode=async $A.rollout.n="$ROLLOUT_N" $A.rollout.tensor_model_parallel_size="$ROLLOUT_TP"
  $A.rollout.gpu_memory_utilization="$GPU_MEMORY_UTILIZATION" $A.rollout.enable_chunked_prefill="$ENABLE_CHUNKED_PREFILL"
  $A.rollout.max_model_len="$MAX_MODEL_LEN" $A.rollout.max_num_batched_tokens="$MAX_MODEL_LEN" $A.rollout.max_num_seqs="$MAX_NUM_SEQS"
  $A.rollout.enforce_eager="$ENFORCE_EAGER" $A.rollout.free_cache_engine=True $A.rollout.calculate_log_probs=True
  $A.rollout.temperature="$TEMPERATURE" $A.rollout.top_p="$TOP_P" $A.rollout.top_k="$TOP_K"
  $A.rollout.val_kwargs.do_sample=True $A.rollout.val_kwargs.n="$VAL_N" $A.rollout.val_kwargs.temperature="$VAL_TEMPERATURE"
  $A.rollout.val_kwargs.top_p="$VAL_TOP_P" $A.rollout.val_kwargs.top_k=-1
  $A.rollout.agent.num_workers="$AGENT_WORKERS" $A.rollout.checkpoint_engine.update_weights_bucket_megabytes="$WEIGHT_BUCKET_MB"
  reward.num_workers="$REWARD_WORKERS" reward.reward_manager.name=dapo
  +reward.reward_kwargs.max_resp_len="$MAX_RESPONSE_LENGTH" +reward.reward_kwargs.overlong_buffer_cfg.enable="$OVERLONG_BUFFER"
  +reward.reward_kwargs.overlong_buffer_cfg.len="$OVERLONG_BUFFER_LEN" +reward.reward_kwargs.overlong_buffer_cfg.log=True
  +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor="$OVERLONG_PENALTY"
  trainer.nnodes="$NNODES" trainer.n_gpus_per_node="$NGPUS_PER_NODE" trainer.logger="$(list "$LOGGERS")"
  trainer.project_name="$PROJECT_NAME" trainer.experiment_name="$EXPERIMENT_NAME"
  trainer.total_epochs="$TOTAL_EPOCHS" trainer.total_training_steps="${TOTAL_STEPS:-null}"
  trainer.save_freq="$SAVE_FREQ" trainer.test_freq="$TEST_FREQ" trainer.val_before_train="$VAL_BEFORE_TRAIN"
  trainer.default_local_dir="$RUN_DIR/ckpt" trainer.max_actor_ckpt_to_keep="${MAX_CKPT_TO_KEEP:-null}"
  "${RESUME[@]}"
)
[ -z "$REWARD_FN_PATH" ] || ARGS+=(reward.custom_reward_function.path="$REWARD_FN_PATH" reward.custom_reward_function.name="$REWARD_FN_NAME")

# What must go with Hy3 whatever the algorithm, for the actor ($1=actor_rollout_ref.actor) and a critic.
megatron_args() {
  local M=$1.megatron T=$1.megatron.override_transformer_config
  ARGS+=(
    "$M.use_mbridge=True" "$M.vanilla_mbridge=False" "$M.use_remove_padding=$USE_REMOVE_PADDING"
    "$M.tensor_model_parallel_size=$TRAIN_TP" "$M.pipeline_model_parallel_size=$TRAIN_PP" "$M.context_parallel_size=$TRAIN_CP"
    "$M.expert_model_parallel_size=$TRAIN_EP" "$M.expert_tensor_parallel_size=$TRAIN_ETP"
    "$M.param_offload=$PARAM_OFFLOAD" "$M.optimizer_offload=$OPTIMIZER_OFFLOAD"
    "+$T.moe_router_enable_expert_bias=$MOE_EXPERT_BIAS" "+$T.moe_router_bias_update_rate=$MOE_BIAS_UPDATE_RATE"
    "+$T.moe_router_load_balancing_type=$MOE_LOAD_BALANCING" "+$T.moe_grouped_gemm=$MOE_GROUPED_GEMM"
    "+$T.moe_permute_fusion=$MOE_PERMUTE_FUSION" "+$T.moe_token_dispatcher_type=$MOE_DISPATCHER" "+$T.moe_router_dtype=fp32"
    "+$T.apply_rope_fusion=$ROPE_FUSION" "+$T.masked_softmax_fusion=$MASKED_SOFTMAX_FUSION"
    "+$T.bias_activation_fusion=$BIAS_ACTIVATION_FUSION" "+$T.bias_dropout_fusion=$BIAS_DROPOUT_FUSION"
    "$T.attention_backend=$ATTENTION_BACKEND"
    "$1.optim.clip_grad=$CLIP_GRAD"
  )
  if [ "$RECOMPUTE_GRANULARITY" = none ]; then
    ARGS+=("$T.recompute_granularity=null")
  else
    ARGS+=("$T.recompute_granularity=$RECOMPUTE_GRANULARITY")
    [ "$RECOMPUTE_GRANULARITY" != full ] || ARGS+=("$T.recompute_method=$RECOMPUTE_METHOD" "$T.recompute_num_layers=$RECOMPUTE_NUM_LAYERS")
  fi
  [ "$FIRST_STAGE_LAYERS" = 0 ] || ARGS+=("+$T.num_layers_in_first_pipeline_stage=$FIRST_STAGE_LAYERS")
  [ "$LAST_STAGE_LAYERS" = 0 ] || ARGS+=("+$T.num_layers_in_last_pipeline_stage=$LAST_STAGE_LAYERS")
  [ -z "$GRADIENT_ACCUMULATION_FUSION" ] || ARGS+=("+$T.gradient_accumulation_fusion=$GRADIENT_ACCUMULATION_FUSION")
  [ -z "$TRANSFORMER_IMPL" ] || ARGS+=("+$T.transformer_impl=$TRANSFORMER_IMPL")
  if [ "$OPTIMIZER_CPU_OFFLOAD" = True ]; then
    local O=$1.optim.override_optimizer_config
    ARGS+=("+$O.optimizer_cpu_offload=True" "+$O.optimizer_offload_fraction=1.0" "+$O.overlap_cpu_optimizer_d2h_h2d=True"
           "$1.optim.use_precision_aware_optimizer=True")
  fi
}
fsdp_args() {
  ARGS+=("$1.strategy=fsdp2" "$1.optim.clip_grad=$CLIP_GRAD" "$1.$2.param_offload=$PARAM_OFFLOAD" "$1.$2.optimizer_offload=$OPTIMIZER_OFFLOAD")
}
if [ "$BACKEND" = megatron ]; then
  ARGS=(model_engine=megatron "${ARGS[@]}")
  megatron_args $A.actor
  ARGS+=("$A.ref.megatron.param_offload=$PARAM_OFFLOAD")
else
  fsdp_args $A.actor fsdp_config
  ARGS+=("$A.ref.strategy=fsdp2" "$A.ref.fsdp_config.param_offload=$PARAM_OFFLOAD")
fi

# ------------------------------------------------------------------------------------------- what an algorithm needs
case $ADV_ESTIMATOR in
  gae)
    ARGS+=(critic.model.path="${MODEL_PATH:-MODEL_PATH}" critic.model.trust_remote_code=True critic.optim.lr="$CRITIC_LR"
           critic.ppo_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE" critic.ppo_max_token_len_per_gpu="$ACTOR_MAX_TOKENS_PER_GPU"
           critic.model.use_remove_padding="$USE_REMOVE_PADDING")
    if [ "$BACKEND" = megatron ]; then megatron_args critic; else fsdp_args critic fsdp; fi ;;
  remax|optimal_token_baseline|tir_optimal_token_baseline)
    # verl 0.9.1's new trainer computes neither greedy baselines nor sums of squared probabilities.
    ARGS+=(trainer.use_v1=False)
    [ "$ADV_ESTIMATOR" = remax ] || ARGS+=("$A.actor.calculate_sum_pi_squared=True") ;;
esac

if [ $ON_CPU = 1 ]; then
  [ "$BACKEND" = fsdp2 ] || [ $DRY_RUN = 1 ] || die "Megatron needs GPUs; without them only BACKEND=fsdp2 runs"
  export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} VLLM_HOST_IP=${VLLM_HOST_IP:-127.0.0.1} RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
  if [ "$BACKEND" = fsdp2 ]; then
    # shellcheck disable=SC2206
    ARGS+=(
      trainer.device=cpu
      $A.actor.use_torch_compile=False $A.ref.use_torch_compile=False
      $A.actor.fsdp_config.use_torch_compile=False $A.ref.fsdp_config.use_torch_compile=False
      $A.actor.fsdp_config.model_dtype=fp32 $A.ref.fsdp_config.model_dtype=fp32
      +$A.actor.fsdp_config.mixed_precision.param_dtype=fp32 +$A.ref.fsdp_config.mixed_precision.param_dtype=fp32
      +$A.model.override_config.attn_implementation=sdpa
      $A.rollout.dtype=float32 $A.rollout.free_cache_engine=False +$A.rollout.enable_sleep_mode=False $A.rollout.enforce_eager=True
      $A.rollout.gpu_memory_utilization=0.1
      transfer_queue.backend.SimpleStorage.num_data_storage_units=1
    )
  fi
fi
# Network variables that the user exported go to the workers of all nodes; verl_hyocr.launch_env reads the list.
while IFS=$'\t' read -r name _; do
  case $name in '' | '#'*) continue ;; esac
  [ -z "${!name+x}" ] || HYOCR_FORWARD="${HYOCR_FORWARD:+$HYOCR_FORWARD }$name"
done <"$KIT/utils/ray/network_allowlist.txt"
export HYOCR_FORWARD=${HYOCR_FORWARD:-}
COMMAND=("$PY" -m verl.trainer.main_ppo "${ARGS[@]}" "${HYDRA[@]}")

if [ $PRINT_ONLY = 1 ]; then
  printf '%s\n' "${ARGS[@]}" "${HYDRA[@]}"
  exit 0
fi
if [ $DRY_RUN = 1 ]; then
  printf '%q ' "${COMMAND[@]}"; printf '\n\n'
  exec "$PY" -m verl_hyocr.dry_run "${ARGS[@]}" "${HYDRA[@]}"
fi

# --------------------------------------------------------------------------------------------------- one run a folder
mkdir -p "$RUN_DIR"/{ckpt,tensorboard}
exec 9>"$RUN_DIR/.lock"
flock -n 9 || die "another run is writing to $RUN_DIR (its lock is held). Choose another EXPERIMENT_NAME or wait for it."
if [ "$RESUME_MODE" = disable ] && compgen -G "$RUN_DIR/ckpt/global_step_*" >/dev/null; then
  die "$RUN_DIR/ckpt holds checkpoints and RESUME_MODE=disable would overwrite them. Choose another EXPERIMENT_NAME or move them."
fi
export VERL_FILE_LOGGER_PATH=$RUN_DIR/metrics.jsonl TENSORBOARD_DIR=$RUN_DIR/tensorboard
"$PY" -m utils.cluster_check --nodes "$NNODES" --gpus-per-node "$NGPUS_PER_NODE" 9>&- ||
  die "no usable Ray cluster at RAY_ADDRESS=$RAY_ADDRESS. Start one with utils/ray/start_ray.sh, or submit with verl/examples/hy3/submit.sh"

say "run folder: $RUN_DIR"
printf '\n===== %s  %s\n' "$(date -u +%FT%TZ)" "$(printf '%q ' "${COMMAND[@]}")" >>"$RUN_DIR/stdout.log"
CHILD=""
# shellcheck disable=SC2329  # called by the trap
stop_child() { [ -z "$CHILD" ] || ! kill -0 "$CHILD" 2>/dev/null || { kill -TERM "$CHILD" 2>/dev/null; wait "$CHILD" || true; }; }
trap stop_child EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"${COMMAND[@]}" > >(exec tee -a "$RUN_DIR/stdout.log") 2>&1 9>&- &
CHILD=$!
CODE=0
wait "$CHILD" || CODE=$?
CHILD=""
if [ "$CODE" = 0 ]; then say "done: $RUN_DIR"; else say "the trainer ended with exit code $CODE; see $RUN_DIR/stdout.log"; fi
exit "$CODE"
