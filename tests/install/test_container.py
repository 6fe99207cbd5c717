"""The container files fit the checkout: what the Dockerfile copies and runs exists, the Slurm script starts Ray and the
launcher as they want it, the KubeRay manifest has KubeRay's fields. No container engine, scheduler or cluster is needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INSTRUCTIONS = {"ARG", "FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}


# ------------------------------------------------------------------------------------------------------- Dockerfile


def instructions() -> list[tuple[str, str]]:
    """(instruction, argument) of the Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def is_ignored(path: str) -> bool:
    """Whether .dockerignore leaves a path of the checkout out of the build."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    return any(
        fnmatch(Path(one).name if pattern.startswith("**/") else one, pattern.removeprefix("**/"))
        for pattern in patterns
        for one in parents
    )


def test_dockerfile_is_well_formed():
    names = [name for name, _ in instructions()]
    assert set(names) <= INSTRUCTIONS
    assert names[:2] == ["ARG", "FROM"] and names.count("FROM") == 1
    for name, argument in instructions():
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(argument))
        if name == "RUN":
            result = subprocess.run(["sh", "-n", "-c", argument], capture_output=True, text=True)
            assert result.returncode == 0, result.stderr


def test_the_base_is_pinned_and_the_python_is_the_hosts():
    arguments = dict(argument.split("=", 1) for name, argument in instructions() if name == "ARG")
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", arguments["BASE"])
    wanted = (ROOT / "requirements/host.txt").read_text()
    assert re.search(r"^python=(\S+)", wanted, re.M)[1] == arguments["PYTHON"].removeprefix("python")


def test_what_is_copied_exists_and_is_not_ignored():
    sources = [argument.split()[0] for name, argument in instructions() if name == "COPY"]
    assert sources.pop() == "."
    for source in sources:
        path = ROOT / source
        assert path.is_dir() if source.endswith("/") else path.is_file(), source
        assert not is_ignored(source.rstrip("/")), source


def test_no_package_comes_from_anywhere_but_the_lock_files():
    runs = " ".join(argument for name, argument in instructions() if name == "RUN")
    assert "bash install_cu13.sh --skip-host-check" in runs
    assert not re.search(r"pip3? install|curl|conda|git clone", runs)
    usage = subprocess.run(["bash", str(ROOT / "install_cu13.sh"), "--help"], capture_output=True, text=True).stdout
    assert "--skip-host-check" in usage


def test_what_training_reads_is_in_the_image():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "train_grpo.sh" in tracked
    left_out = {path.split("/")[0] for path in tracked if is_ignored(path)}
    assert left_out <= {"tests", "benchmarks", ".ci", ".gitignore"}
    for path in (
        ".venv/bin/python",
        "outputs/demo/model/config.json",
        "verl/verl_hyocr/__pycache__/x.pyc",
        ".git/HEAD",
    ):
        assert is_ignored(path), path


def test_the_user_is_not_root_and_writes_only_where_it_may():
    by_name = dict(instructions())
    assert by_name["USER"] not in ("0", "root")
    environment = " ".join(argument for name, argument in instructions() if name == "ENV")
    values = dict(re.findall(r"(\w+)=(\S+)", environment))
    made = next(argument for name, argument in instructions() if name == "RUN" and "useradd" in argument)
    for name in ("OUTPUT_DIR", "DEMO_DIR", "HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"):
        root = "/" + values[name].split("/")[1]
        assert re.search(rf"install -d -m 1777.*{root}\b", made), name
    assert values["VIRTUAL_ENV"] + "/bin" in values["PATH"]
    assert json.loads(by_name["CMD"])[1] == "train_grpo.sh"


# ------------------------------------------------------------------------------------------------------------ Slurm


@pytest.fixture
def slurm(tmp_path):
    """A kit of stubs and a Slurm of stubs: they write down how they were called."""
    kit, bin_dir, log = tmp_path / "kit", tmp_path / "bin", tmp_path / "calls"
    (kit / "utils/ray").mkdir(parents=True)
    bin_dir.mkdir()
    shutil.copytree(ROOT / "utils/install", kit / "utils/install")
    shutil.copytree(ROOT / "requirements", kit / "requirements")
    files = {
        kit / "utils/cluster_check.py": "import os, sys\n"
        f"open({str(log)!r}, 'a').write('check ' + ' '.join(sys.argv[1:]) + ' ' + os.environ['RAY_ADDRESS'] + '\\n')\n"
        f"print('no cluster yet') or sys.exit(not os.path.exists({str(tmp_path / 'ray_is_up')!r}))\n",
        kit / "utils/ray/start_ray.sh": f'echo "ray $* head=$HEAD_IP wait=$RAY_WAIT_SECONDS" >>{log}\n'
        f'[ -z "${{ROCR_VISIBLE_DEVICES+x}}" ] || echo rocr-is-set >>{log}\n'
        f"trap 'echo ray-stopped >>{log}; exit 0' TERM\n"
        f'[ -z "${{RAY_FAILS:-}}" ] || exit 1\ntouch {tmp_path}/ray_is_up\nwhile :; do sleep 0.1; done\n',
        kit / "train_grpo.sh": f'[ -z "${{ROCR_VISIBLE_DEVICES+x}}" ] || echo rocr-is-set >>{log}\n'
        f'echo "train $* nodes=$NNODES gpus=$NGPUS_PER_NODE address=$RAY_ADDRESS" >>{log}\n'
        f"trap 'echo train-asked-to-stop >>{log}; exit 75' TERM\n"
        f'touch {tmp_path}/training\n[ -z "${{TRAIN_WAITS:-}}" ] || while :; do sleep 0.1; done\nexit "${{TRAIN_CODE:-0}}"\n',
        bin_dir / "srun": "#!/bin/bash\n"
        f'echo "srun $*" >>{log}\nwhile [[ $1 == --* ]]; do shift; done\nexport SLURM_NODEID=0 ROCR_VISIBLE_DEVICES=0\n'
        # As Slurm's own: SIGTERM ends the tasks the hard way.
        f'"$@" & echo $! >{tmp_path}/task\ntrap "kill -KILL $!; echo srun-killed-ray >>{log}; exit 143" TERM\nwait $!\n',
        bin_dir / "scancel": f'#!/bin/bash\necho "scancel $*" >>{log}\nkill -TERM "$(<{tmp_path}/task)"\n',
        bin_dir / "scontrol": f'#!/bin/bash\necho "scontrol $*" >>{log}\n',
        bin_dir / "sleep": '#!/bin/bash\nexec /bin/sleep "$([ "$1" = 5 ] && echo 0.2 || echo "$1")"\n',
    }
    for path, text in files.items():
        path.write_text(text)
        path.chmod(0o755)
    environment = {
        "PATH": f"{bin_dir}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "SLURM_SUBMIT_DIR": str(kit),
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_CPUS_ON_NODE": "96",
        "SLURM_JOB_ID": "17",
        "ROCR_VISIBLE_DEVICES": "0,1",
        "HEAD_IP": "10.1.2.3",
    }

    def submit(*arguments: str, **more: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(ROOT / "utils/ray/slurm.sbatch"), *arguments],
            env=environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    submit.calls = lambda: log.read_text().splitlines()
    submit.wait_for = lambda name: _wait(tmp_path / name)
    return submit


def _wait(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


def test_slurm_starts_ray_on_all_nodes_and_trains_on_the_first(slurm):
    job = slurm("--", "trainer.save_freq=5")
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output
    calls = slurm.calls()
    step = calls[0].split()
    assert step[0] == "srun"
    assert {"--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--cpus-per-task=96", "--cpu-bind=none"} <= set(step)
    assert "ray 4 0 --block head=10.1.2.3 wait=600" in calls
    assert "check --nodes 4 --gpus-per-node 8 10.1.2.3:6379" in calls
    assert "train -- trainer.save_freq=5 nodes=4 gpus=8 address=10.1.2.3:6379" in calls
    assert calls.index("ray-stopped") > calls.index("train -- trainer.save_freq=5 nodes=4 gpus=8 address=10.1.2.3:6379")
    assert "scancel --signal=TERM 17.0" in calls and "srun-killed-ray" not in calls
    assert "rocr-is-set" not in calls, "verl refuses it beside CUDA_VISIBLE_DEVICES"


def test_slurm_returns_the_trainers_exit_code(slurm):
    job = slurm(TRAIN_CODE="3")
    job.communicate(timeout=120)
    assert job.returncode == 3 and "ray-stopped" in slurm.calls()


@pytest.mark.parametrize("requeue", ["0", "1"])
def test_slurm_time_limit_saves_and_can_requeue(slurm, requeue):
    job = slurm(TRAIN_WAITS="1", REQUEUE=requeue)
    slurm.wait_for("training")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=120)
    assert job.returncode == 75
    calls = slurm.calls()
    assert calls.index("train-asked-to-stop") < calls.index("ray-stopped"), "Ray outlives the save"
    assert ("scontrol requeue 17" in calls) == (requeue == "1")


def test_slurm_says_why_ray_did_not_come(slurm):
    job = slurm(RAY_FAILS="1")
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 1 and "Ray ended on one of the nodes" in output
    assert not any(call.startswith("train") for call in slurm.calls())
    late = slurm(RAY_WAIT_SECONDS="0", RAY_FAILS="", SLURM_GPUS_ON_NODE="")
    output, _ = late.communicate(timeout=120)
    assert late.returncode != 0 and "no GPUs in this allocation" in output


def test_slurm_script_passes_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    result = subprocess.run([str(shellcheck), str(ROOT / "utils/ray/slurm.sbatch")], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_slurm_options_come_before_the_first_command():
    lines = (ROOT / "utils/ray/slurm.sbatch").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options and max(options) < first, "Slurm reads no option after a command"


# ------------------------------------------------------------------------------------------------------- Kubernetes

# Fields of KubeRay's ray.io/v1 types (RayClusterSpec, HeadGroupSpec, WorkerGroupSpec) and of a pod that are used here.
CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"serviceType", "rayStartParams", "template"}
WORKER = {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"}
POD = {"securityContext", "terminationGracePeriodSeconds", "containers", "volumes"}
CONTAINER = {"name", "image", "env", "resources", "volumeMounts"}


@pytest.fixture(scope="module")
def cluster() -> dict:
    return yaml.safe_load((ROOT / "utils/ray/kuberay.yaml").read_text())


def test_kuberay_manifest_has_kuberays_fields(cluster):
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    assert spec.keys() <= CLUSTER and spec["headGroupSpec"].keys() <= HEAD
    groups = spec["workerGroupSpecs"]
    assert groups and all(group.keys() <= WORKER for group in groups)
    for group in (spec["headGroupSpec"], *groups):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "KubeRay wants strings"
        pod = group["template"]["spec"]
        assert pod.keys() <= POD
        (container,) = pod["containers"]
        assert container.keys() <= CONTAINER
        assert all(isinstance(variable["value"], str) for variable in container["env"])
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert container["resources"]["limits"]["nvidia.com/gpu"] > 0
    for group in groups:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_kuberay_manifest_fits_image_and_lock(cluster):
    pinned = re.search(r"^ray==(\S+)", (ROOT / "requirements/gpu.txt").read_text(), re.M)[1]
    assert cluster["spec"]["rayVersion"] == pinned
    pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert str(pod["securityContext"]["runAsUser"]) == dict(instructions())["USER"]
    packages = next(argument for name, argument in instructions() if name == "RUN" and "apt-get" in argument)
    # KubeRay's health probes are wget calls inside the container.
    assert " wget" in packages


def test_the_page_names_what_was_not_run():
    page = (ROOT / "docs/container.md").read_text()
    assert "## What was run" in page and "Not run" in page
    for name in ("Dockerfile", "utils/ray/slurm.sbatch", "utils/ray/kuberay.yaml"):
        assert name in page
