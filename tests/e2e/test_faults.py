"""A process of a training run is killed, or its disk fills up, while it rolls out, updates or saves; SIGTERM; resuming.

Every run is the real launcher with the tiny model. Faulted runs start from the second checkpoint of one uninterrupted run of
four steps (three an epoch) and must end by themselves, with the reason; what is on disk then must lead to the same losses.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SETTINGS = {
    "EXPERIMENT_NAME": "faults",
    "TRAIN_BATCH_SIZE": "2",
    "PPO_MINI_BATCH_SIZE": "2",
    "ROLLOUT_N": "2",
    "MAX_RESPONSE_LENGTH": "4",
    "TEST_FREQ": "-1",
    "SAVE_FREQ": "1",
    "SAVE_HF_MODEL": "0",
    "TOTAL_STEPS": "4",
    "LOGGERS": "console,file",
    "REWARD_FN_PATH": str(HERE / "pause_points.py"),
    "REWARD_FN_NAME": "compute_score",
    "PYTHONPATH": str(HERE),
}
HYDRA = ("data.train_max_samples=6", "actor_rollout_ref.model.external_lib=pause_points")
COMPARED = (
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/grad_norm",
    "actor/entropy",
    "critic/score/mean",
    "response_length/mean",
)
MOMENTS = ("rollout", "update", "save")
VICTIMS = {
    "trainer": "ray::TaskRunnerV1",
    "rollout server": "ray::vLLMHttpServer",
    "reward worker": "ray::RewardLoopWorker",
}


class Run:
    """One launcher in a working folder of its own, started and left running."""

    def __init__(self, root: Path, work: Path, demo: Path, **settings: str):
        self.folder, self.ray = work / "hold", f"/tmp/hyocr-faults-{os.getpid()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("reached", "go"):
            (self.folder / name).unlink(missing_ok=True)
        self.run_dir = Path(settings.get("OUTPUT_DIR", work / "runs")) / "demo/faults"
        self.log = work / "launcher.log"
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV", "TMPDIR") if name in os.environ}
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        environment = {
            **keep,
            "PYTHON": sys.executable,
            "VERL_PLATFORM": "cpu",
            "HF_HUB_OFFLINE": "1",
            "RAY_RUN_DIR": self.ray,
            "DEMO_DIR": str(demo),
            "OUTPUT_DIR": str(work / "runs"),
            "HYOCR_TEST_FOLDER": str(self.folder),
            **SETTINGS,
            "PYTHONPATH": path,
            **settings,
        }
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                ["bash", str(root / "train_grpo.sh"), "--skip-preflight", "--", *HYDRA],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def wait_until_held(self) -> None:
        """Return when a process of the run has reached the moment."""
        while not (self.folder / "reached").exists():
            assert self.process.poll() is None, self.text()[-6000:]
            time.sleep(0.2)

    def go_on(self) -> None:
        (self.folder / "go").touch()

    def kill(self, victim: str) -> None:
        for pid in self._pids(victim):
            os.kill(pid, signal.SIGKILL)

    def _pids(self, victim: str) -> list[int]:
        """Process ids of this run's raylet, or of those of its workers that have the victim's title."""
        import psutil

        raylets = [
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "raylet" and any(self.ray in part for part in process.info["cmdline"] or ())
        ]
        assert len(raylets) == 1
        if victim == "raylet":
            return [raylets[0].pid]
        found = [child.pid for child in raylets[0].children() if child.cmdline()[0].startswith(VICTIMS[victim])]
        assert found, f"no {victim} among the workers"
        return found

    def wait(self, timeout: float = 1800) -> int:
        return self.process.wait(timeout=timeout)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def root(self) -> Path:
        return self.run_dir / "ckpt"

    def steps(self) -> dict[int, dict]:
        records = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        return {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def reference(kit_root, demo, tmp_path_factory) -> Run:
    """Four steps without a fault."""
    run = Run(kit_root, tmp_path_factory.mktemp("reference"), demo)
    assert run.wait() == 0, run.text()[-6000:]
    return run


@pytest.fixture()
def start(kit_root, demo, reference, tmp_path):
    """start(after_step=2, work=…, **settings): a run with the reference's state after that step (0: none)."""
    started = []

    def begin(after_step: int = 2, work: Path = tmp_path, **settings: str) -> Run:
        root = Path(settings.get("OUTPUT_DIR", work / "runs")) / "demo/faults/ckpt"
        if after_step and not root.exists():
            root.mkdir(parents=True)
            name = f"global_step_{after_step}"
            shutil.copytree(reference.root() / name, root / name)
            (root / "latest_checkpointed_iteration.txt").write_text(str(after_step))
        started.append(Run(kit_root, work, demo, **settings))
        return started[-1]

    yield begin
    for run in started:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.terminate()
            run.process.wait(timeout=120)


def assert_same_losses(run: Run, reference: Run, steps) -> None:
    ours, theirs = run.steps(), reference.steps()
    for step in steps:
        for name in COMPARED:
            assert ours[step][name] == pytest.approx(theirs[step][name], rel=1e-6, abs=1e-9), (step, name)


def assert_disk_is_sound(run: Run) -> int:
    """Every visible checkpoint is whole; returns the step where a resume starts."""
    from verl_hyocr import checkpoint

    assert all(item.complete for item in checkpoint.scan(run.root()))
    return checkpoint.find_resumable(run.root())[0].step


def test_uninterrupted_run_varies(reference):
    """Equal losses mean something: steps differ, rewards differ within a group, gradients are there."""
    steps = reference.steps()
    assert list(steps) == [1, 2, 3, 4]
    assert len({step["critic/score/mean"] for step in steps.values()}) > 1
    assert any(
        step["actor/grad_norm"] > 0 and step["critic/score/max"] > step["critic/score/min"] for step in steps.values()
    )


@pytest.mark.parametrize("after_step", [1, 3], ids=["within an epoch", "at its end"])
def test_resume_gives_the_losses_of_the_uninterrupted_run(start, reference, after_step):
    run = start(after_step)
    assert run.wait() == 0, run.text()[-6000:]
    assert_same_losses(run, reference, range(after_step + 1, 5))


def test_sigterm_during_the_rollout_saves_the_step_before(start, reference):
    """Step 2 is not saved by SAVE_FREQ; the reward holds the rollout of step 3. What was fetched for it is fetched again."""
    run = start(1, SAVE_FREQ="10", HYOCR_TEST_PAUSE="rollout", HYOCR_TEST_SKIP="4")
    run.wait_until_held()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(180) == 75, run.text()[-6000:]
    assert "stopped on request; step 2 is saved" in run.text() and assert_disk_is_sound(run) == 2
    assert "stopped on request; the same command continues" in run.text()
    again = start(SAVE_FREQ="10")
    assert again.wait() == 0, again.text()[-6000:]
    assert_same_losses(again, reference, (2, 3, 4))


def test_sigterm_during_the_update_saves_that_step(start, reference):
    run = start(2, SAVE_FREQ="10", HYOCR_TEST_PAUSE="update")
    run.wait_until_held()
    run.process.send_signal(signal.SIGTERM)
    run.go_on()
    assert run.wait(180) == 75, run.text()[-6000:]
    assert "step 3 is saved" in run.text() and assert_disk_is_sound(run) == 3
    again = start(SAVE_FREQ="10")
    assert again.wait() == 0, again.text()[-6000:]
    assert_same_losses(again, reference, (3, 4))


def test_second_sigterm_ends_at_once(start):
    run = start(2, HYOCR_TEST_PAUSE="update")
    run.wait_until_held()
    run.process.send_signal(signal.SIGTERM)
    while "saving after the current step" not in run.text():
        assert run.process.poll() is None, run.text()[-6000:]
        time.sleep(0.2)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(120) == 143
    assert assert_disk_is_sound(run) == 2


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", [*VICTIMS, "raylet"])
def test_kill_9(start, reference, victim, moment):
    run = start(2, HYOCR_TEST_PAUSE=moment)
    run.wait_until_held()
    run.kill(victim)
    killed_at = time.monotonic()
    run.go_on()
    code = run.wait(300)
    took = time.monotonic() - killed_at
    assert code not in (0, 75), run.text()[-6000:]
    assert took < 90, f"{took:.0f} s until the run ended (60 s for the driver, the rest to stop Ray)"
    tail = run.text()[-8000:]
    assert "verl-hyocr:" in tail, tail
    assert assert_disk_is_sound(run) in (2, 3)
    again = start()
    assert again.wait() == 0, again.text()[-6000:]
    assert_same_losses(again, reference, (3, 4))


@pytest.fixture()
def small_disk(tmp_path):
    """A file system of its own of 450 MB, for three checkpoints of the tiny model and the logs; root only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=450m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"no tmpfs: {mount.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("moment", MOMENTS)
def test_disk_full(start, reference, small_disk, moment):
    """Full before the save is decided: refused with a message. Full while it writes: the save fails and is taken back."""
    run = start(2, OUTPUT_DIR=str(small_disk), HYOCR_TEST_PAUSE=moment)
    run.wait_until_held()
    ballast = small_disk / "ballast"
    free = shutil.disk_usage(small_disk).free
    with open(ballast, "wb") as file:
        # The rest is for the logs.
        os.posix_fallocate(file.fileno(), 0, free - (4 << 20))
    run.go_on()
    assert run.wait(300) == 1, run.text()[-6000:]
    text = run.text()
    assert ("No space left" in text) if moment == "save" else ("not enough disk space for the next checkpoint" in text)
    assert assert_disk_is_sound(run) == 2
    assert not (run.root() / ".incomplete").exists()
    ballast.unlink()
    again = start(OUTPUT_DIR=str(small_disk), MAX_CKPT_TO_KEEP="1")
    assert again.wait() == 0, again.text()[-6000:]
    assert_same_losses(again, reference, (3, 4))
