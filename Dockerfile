# Image of the kit for GPU hosts. Built on any machine, without a GPU:
#
#   docker build -t hyocr-rl .
#   docker run --rm --init --gpus all --shm-size=64g -v /data:/data -v /data/outputs:/outputs hyocr-rl bash train_grpo.sh
#
# docs/container.md has Slurm and Kubernetes. CUDA comes from the locked PyPI wheels; the host brings the driver and the
# NVIDIA container toolkit, so the base is a plain distribution with Python 3.12.
ARG BASE=ubuntu:24.04
FROM ${BASE}

ARG PYTHON=python3.12

# gcc, g++ and Python's headers: Triton and FlashInfer compile at run time. wget: KubeRay's health probes. libibverbs:
# NCCL over InfiniBand.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates "${PYTHON}" "${PYTHON}-dev" "${PYTHON}-venv" gcc g++ libc6-dev \
        ibverbs-providers iproute2 libibverbs1 libnuma1 procps tini util-linux wget \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv \
    PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /opt/hyocr

# What the installation reads, apart from the rest: a change of reward or data code does not install 7 GB again.
COPY install_cu13.sh ./
COPY requirements/ requirements/
COPY utils/install/ utils/install/
COPY verl/ verl/
RUN "${PYTHON}" -m venv "${VIRTUAL_ENV}" \
    && PIP_NO_CACHE_DIR=1 USE_MEGATRON=0 USE_SGLANG=0 bash install_cu13.sh --skip-host-check

COPY . .
RUN python -m compileall -q .

# Any user may run it (docker run --user, OpenShift, Apptainer): code and environment are only read, caches and results go
# where everybody can write.
RUN useradd --uid 10001 --gid 0 --create-home --home-dir /home/hyocr hyocr \
    && chmod -R g+rwX /home/hyocr \
    && install -d -m 1777 /outputs /cache
ENV HOME=/home/hyocr \
    OUTPUT_DIR=/outputs \
    DEMO_DIR=/outputs/demo \
    HF_HOME=/cache/huggingface \
    XDG_CACHE_HOME=/cache \
    TRITON_CACHE_DIR=/cache/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
ENTRYPOINT ["/usr/bin/tini", "-g", "--"]
CMD ["bash", "train_grpo.sh", "--help"]
