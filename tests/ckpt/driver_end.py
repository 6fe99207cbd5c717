"""The driver of ``verl_hyocr.main`` on a real Ray with a stand-in for verl's trainer:  python tests/ckpt/driver_end.py MODE

Prints ``PIDS {"trainer": …, "worker": …}`` when the trainer waits. MODE: patient (stops on request), deaf (never looks),
starting (has not begun to train).
"""

from __future__ import annotations

import json
import os
import sys
import time
import types

import ray
from verl_hyocr import main, stop

MODE = sys.argv[1]


@ray.remote(num_cpus=0)
class RewardLoopWorker:
    def pid(self) -> int:
        return os.getpid()


@ray.remote(num_cpus=0)
class TaskRunnerV1:
    def run(self, config):
        worker = RewardLoopWorker.remote()
        pids = {"trainer": os.getpid(), "worker": ray.get(worker.pid.remote())}
        if MODE != "starting":
            stop.announce_training()
        print("PIDS " + json.dumps(pids), flush=True)
        while not (MODE == "patient" and stop.is_requested()):
            time.sleep(0.1)
        raise stop.Stopped("stopped on request; step 2 is saved")


def run_ppo() -> None:
    """What verl.trainer.main_ppo does between Ray's start and the end."""
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", object_store_memory=80 << 20)
    runner = sys.modules["verl.trainer.main_ppo"].TaskRunnerV1.remote()
    ray.get(runner.run.remote({}))


for name in ("verl", "verl.trainer", "verl.trainer.main_ppo"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["verl.trainer"].main_ppo = sys.modules["verl.trainer.main_ppo"]
sys.modules["verl.trainer.main_ppo"].TaskRunnerV1 = TaskRunnerV1
sys.modules["verl.trainer.main_ppo"].main = run_ppo

if __name__ == "__main__":
    sys.exit(main.main())
