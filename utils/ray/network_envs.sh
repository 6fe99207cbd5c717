#!/usr/bin/env bash
# Network settings for NCCL, Gloo and UCX: source it on every node before Ray starts (start_ray.sh does), or print them.
#
#   source utils/ray/network_envs.sh            # exports into this shell
#   bash utils/ray/network_envs.sh --print      # prints the export lines and where each value comes from
#   bash utils/ray/network_envs.sh --help
#
# Whatever is already exported stays as it is. Names of interfaces and adapters are detected on this host or left unset.

hyocr_net_usage() {
    cat <<'USAGE'
Usage: source utils/ray/network_envs.sh            export the settings into this shell
       bash utils/ray/network_envs.sh --print      print them as shell code, with the source of each value

Tiers (NET_TIER):
  A     InfiniBand or RoCE with GPUDirect RDMA
  B     InfiniBand or RoCE without GPUDirect RDMA: when tier A hangs, fails or corrupts data
  C     plain TCP: when InfiniBand itself fails. DISABLE_IB=1 is the same as NET_TIER=C
  none  set nothing: one node needs no network settings
  unset NNODES > 1: the best tier this host offers (A, else B, else C); otherwise none

Environment:
  NET_TIER     see above
  DISABLE_IB   1 = tier C
  NNODES       number of nodes (1)
  NODE_IP      this node's address in the cluster; its interface carries the socket traffic
  HEAD_IP      the head's address: without NODE_IP the interface of the route to it is used;
               without either the interface of the only default route
  SYSFS_ROOT   /sys
  PROC_ROOT    /proc

Every variable that is already exported is kept: step down from A to B to C by changing NET_TIER only.
The variables that train_grpo.sh forwards to the workers are listed in utils/ray/network_allowlist.txt.
Exit (return) code: 0 fine, 1 the tier cannot be had on this host, 2 bad usage.
USAGE
}

# Messages go to stderr as comments, so that stdout stays shell code.
hyocr_net_note() { printf '# %s\n' "$*" >&2; }

# Interface that holds IPv4 address $1.
hyocr_net_iface_of() { ip -o -4 addr show 2>/dev/null | awk -v a="$1" '{split($4, x, "/"); if (x[1] == a) {print $2; exit}}'; }

hyocr_net_detect_iface() {
    local iface="" source=""
    if ! command -v ip >/dev/null 2>&1; then
        hyocr_net_note "no interface detected: the ip command (package iproute2) is missing; export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME yourself"
        return 0
    fi
    if [[ -n "${NODE_IP:-}" ]]; then
        iface=$(hyocr_net_iface_of "$NODE_IP")
        source="holds NODE_IP $NODE_IP"
    fi
    if [[ -z "$iface" && -n "${HEAD_IP:-}" ]]; then
        # On the head itself the route to HEAD_IP is the loopback device: look the address up first.
        iface=$(hyocr_net_iface_of "$HEAD_IP")
        source="holds HEAD_IP $HEAD_IP"
        if [[ -z "$iface" ]]; then
            iface=$(ip -o -4 route get "$HEAD_IP" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
            source="route to HEAD_IP $HEAD_IP"
        fi
    fi
    if [[ -z "$iface" && -z "${NODE_IP:-}${HEAD_IP:-}" ]]; then
        local defaults
        defaults=$(ip -o -4 route show default 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' | sort -u)
        if [[ $(wc -w <<<"$defaults") -eq 1 ]]; then
            iface=$defaults
            source="default route"
        elif [[ -n "$defaults" ]]; then
            hyocr_net_note "no interface chosen: several default routes (${defaults//$'\n'/ }); set HEAD_IP or export NCCL_SOCKET_IFNAME"
        fi
    fi
    if [[ -z "$iface" || "$iface" == lo ]]; then
        hyocr_net_note "no interface detected (NODE_IP=${NODE_IP:-} HEAD_IP=${HEAD_IP:-}): NCCL and Gloo choose by themselves"
        return 0
    fi
    HYOCR_NET_IFACE=$iface
    hyocr_net_note "interface $iface: $source"
}

# Active ports as "mlx5_0:1 mlx5_1:1": InfiniBand ports if there is one, else RoCE ports; of these the fastest.
hyocr_net_detect_hcas() {
    local port state layer rate device name rows=""
    for port in "${SYSFS_ROOT:-/sys}"/class/infiniband/*/ports/*; do
        [[ -r "$port/state" ]] || continue
        state=$(<"$port/state")
        [[ "$state" == *ACTIVE* ]] || continue
        layer=$(cat "$port/link_layer" 2>/dev/null || echo InfiniBand)
        rate=$(awk '{print int($1)}' "$port/rate" 2>/dev/null || echo 0)
        device=${port%/ports/*}
        name="${device##*/}:${port##*/}"
        rows+="$layer ${rate:-0} $name"$'\n'
    done
    [[ -n "$rows" ]] || return 0
    if grep -q '^InfiniBand ' <<<"$rows"; then
        HYOCR_NET_LINK=InfiniBand
    else
        HYOCR_NET_LINK=Ethernet
    fi
    local best
    best=$(awk -v l="$HYOCR_NET_LINK" '$1 == l && $2 > m {m = $2} END {print m + 0}' <<<"$rows")
    HYOCR_NET_HCAS=$(awk -v l="$HYOCR_NET_LINK" -v b="$best" '$1 == l && $2 == b {print $3}' <<<"$rows" | sort -V | xargs)
    local left
    left=$(awk -v l="$HYOCR_NET_LINK" -v b="$best" 'NF && !($1 == l && $2 == b) {print $3 " (" $1 ", " $2 " Gb/s)"}' <<<"$rows" | paste -sd ';')
    hyocr_net_note "adapters ($HYOCR_NET_LINK, $best Gb/s): $HYOCR_NET_HCAS${left:+; left out: $left}"
}

# GPUDirect RDMA needs the peer-memory module, or DMA-BUF: open kernel modules of the driver on Linux 5.12 or later.
hyocr_net_has_gdr() {
    local module proc=${PROC_ROOT:-/proc} release
    for module in nvidia_peermem nv_peer_mem; do
        if [[ -d "${SYSFS_ROOT:-/sys}/module/$module" ]]; then
            hyocr_net_note "GPUDirect RDMA: kernel module $module is loaded"
            return 0
        fi
    done
    if grep -q "Open Kernel Module" "$proc/driver/nvidia/version" 2>/dev/null; then
        release=$(cat "$proc/sys/kernel/osrelease" 2>/dev/null || uname -r)
        if [[ $(printf '5.12\n%s\n' "${release%%-*}" | sort -V | head -n1) == 5.12 ]]; then
            hyocr_net_note "GPUDirect RDMA: open kernel modules on Linux $release (DMA-BUF)"
            return 0
        fi
    fi
    return 1
}

# Exports $1=$2 unless the user did, and remembers what was set here: such values are right for this host only.
hyocr_net_set() {
    if [[ -n "${!1+x}" ]]; then
        hyocr_net_note "$1=${!1} kept: already exported"
        return 0
    fi
    export "$1=$2" HYOCR_NET_SET="${HYOCR_NET_SET:+$HYOCR_NET_SET }$1=$2"
}

# Takes back what an earlier run in this shell set, so that stepping from tier B to A or C leaves nothing behind.
hyocr_net_reset() {
    local entry name
    for entry in ${HYOCR_NET_SET:-}; do
        name=${entry%%=*}
        [[ "${!name:-}" != "${entry#*=}" ]] || unset "$name"
    done
    unset HYOCR_NET_SET
}

hyocr_net_main() {
    local tier=${NET_TIER:-auto}
    HYOCR_NET_IFACE="" HYOCR_NET_HCAS="" HYOCR_NET_LINK=""
    hyocr_net_reset
    case "$tier" in
        A | B | C | none | auto) ;;
        a | b | c) tier=${tier^^} ;;
        *)
            hyocr_net_note "error: NET_TIER=$tier: use A, B, C or none"
            return 2
            ;;
    esac
    if [[ "${DISABLE_IB:-0}" == 1 ]]; then
        if [[ "$tier" == A || "$tier" == B ]]; then
            hyocr_net_note "error: DISABLE_IB=1 contradicts NET_TIER=$tier: unset one of them"
            return 2
        fi
        tier=C
    fi
    if [[ "$tier" == auto && ! "${NNODES:-1}" =~ ^[0-9]+$ ]]; then
        hyocr_net_note "error: NNODES=${NNODES} is not a number"
        return 2
    fi
    if [[ "$tier" == none || ("$tier" == auto && "${NNODES:-1}" -le 1) ]]; then
        export HYOCR_NET_TIER=none
        return 0
    fi

    [[ "$tier" == C ]] || hyocr_net_detect_hcas
    if [[ "$tier" == auto ]]; then
        if [[ -z "$HYOCR_NET_HCAS" ]]; then
            tier=C
            hyocr_net_note "no active InfiniBand or RoCE port under ${SYSFS_ROOT:-/sys}/class/infiniband: tier C"
        elif hyocr_net_has_gdr; then
            tier=A
        else
            tier=B
            hyocr_net_note "no GPUDirect RDMA (neither nvidia_peermem nor DMA-BUF): tier B"
        fi
    elif [[ "$tier" != C && -z "$HYOCR_NET_HCAS" && -z "${NCCL_IB_HCA:-}" ]]; then
        hyocr_net_note "error: NET_TIER=$tier, but no active port under ${SYSFS_ROOT:-/sys}/class/infiniband; check ibdev2netdev, export NCCL_IB_HCA, or use NET_TIER=C"
        return 1
    fi
    hyocr_net_detect_iface

    if [[ -n "$HYOCR_NET_IFACE" ]]; then
        hyocr_net_set NCCL_SOCKET_IFNAME "=$HYOCR_NET_IFACE"
        hyocr_net_set GLOO_SOCKET_IFNAME "$HYOCR_NET_IFACE"
    fi
    case "$tier" in
        A | B)
            hyocr_net_set NCCL_IB_DISABLE 0
            if [[ -n "$HYOCR_NET_HCAS" ]]; then
                # Without the leading = NCCL matches prefixes: mlx5_1 would also take mlx5_10.
                hyocr_net_set NCCL_IB_HCA "=${HYOCR_NET_HCAS// /,}"
                hyocr_net_set UCX_NET_DEVICES "${HYOCR_NET_HCAS// /,}"
            fi
            if [[ "$tier" == B ]]; then
                hyocr_net_set NCCL_NET_GDR_LEVEL LOC
                hyocr_net_set NCCL_NET_GDR_READ 0
            fi
            ;;
        C)
            hyocr_net_set NCCL_IB_DISABLE 1
            hyocr_net_set UCX_TLS tcp,self,sm,cuda_copy,cuda_ipc
            [[ -z "$HYOCR_NET_IFACE" ]] || hyocr_net_set UCX_NET_DEVICES "$HYOCR_NET_IFACE"
            ;;
    esac
    export HYOCR_NET_TIER=$tier
    hyocr_net_note "tier $tier"
}

if [[ "${BASH_SOURCE[0]}" != "$0" ]]; then
    hyocr_net_main
    return $?
fi

set -euo pipefail
case "${1:-}" in
    -h | --help)
        hyocr_net_usage
        exit 0
        ;;
    --print) ;;
    *)
        hyocr_net_usage >&2
        exit 2
        ;;
esac
hyocr_net_main
while IFS=$'\t' read -r name _; do
    [[ -z "$name" || "$name" == \#* || -z "${!name+x}" ]] && continue
    value=${!name}
    printf "export %s='%s'\n" "$name" "${value//\'/\'\\\'\'}"
done <"$(dirname "${BASH_SOURCE[0]}")/network_allowlist.txt"
