#!/usr/bin/env bash
# Merges sharded FSDP checkpoints into HuggingFace folders that transformers and vLLM load.   (--help lists everything)
#
#   STEPS=100 bash utils/ckpt/merge_fsdp_ckpt_to_hf.sh
#   STEPS="25 50 75 100" CKPT_ROOT=/data/run/ckpt bash utils/ckpt/merge_fsdp_ckpt_to_hf.sh
#   STEPS=all TARGET_DIR_MODE=new bash utils/ckpt/merge_fsdp_ckpt_to_hf.sh
#
# USE_CPU_INIT=1 (default) hides the GPUs from the merge, so that it can run beside a training; 0 leaves them visible.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=utils/install/common.sh
source "$here/../install/common.sh"
case "${USE_CPU_INIT:-1}" in
    1) export CUDA_VISIBLE_DEVICES="" ;;
    0) ;;
    *) hyocr_die 2 "USE_CPU_INIT=${USE_CPU_INIT}: use 0 or 1" ;;
esac
python=$(hyocr_kit_python)
PYTHONPATH="$HYOCR_ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m utils.ckpt.merge "$@"
