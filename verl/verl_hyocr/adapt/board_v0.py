"""B2.v0: the deprecated v0 trainer writes files for RLLoggingBoard too; trainer v1 does it in :mod:`verl_hyocr.trainer`.

Symptom without it: ``rl_logging_board/`` stays empty with ``trainer.use_v1=False``.
Upstream: ``RayPPOTrainer._log_rollout_data`` has the whole batch after the update, but is only called when
``trainer.rollout_data_dir`` is set. ``RayPPOTrainer.fit`` sets it to the board's folder for the time of the run where the user
has not; upstream's own dump is then left out.
Process: the trainer. Goes with the v0 trainer.
"""

from __future__ import annotations

import functools
from types import ModuleType

from omegaconf import open_dict

from verl_hyocr.registry import Step, mark

MODULE = "verl.trainer.ppo.ray_trainer"


def _apply(module: ModuleType) -> None:
    trainer = module.RayPPOTrainer
    fit, log = trainer.fit, trainer._log_rollout_data

    @functools.wraps(fit)
    def fit_with_board(self):
        from verl_hyocr.board_source import RolloutBoard

        board = self.hyocr_board = RolloutBoard.from_env()
        if board is None:
            return fit(self)
        self.hyocr_board_only = not self.config.trainer.get("rollout_data_dir", None)
        if self.hyocr_board_only:
            with open_dict(self.config):
                self.config.trainer.rollout_data_dir = str(board.writer.folder)
        try:
            return fit(self)
        finally:
            board.close()

    @functools.wraps(log)
    def log_with_board(self, batch, reward_extra_infos_dict, timing_raw, rollout_data_dir):
        board = getattr(self, "hyocr_board", None)
        if board is not None:
            with module.marked_timer("rl_logging_board", timing_raw):
                board.log_batch(self, batch, reward_extra_infos_dict)
            if self.hyocr_board_only:
                return
        log(self, batch, reward_extra_infos_dict, timing_raw, rollout_data_dir)

    trainer.fit = mark(fit_with_board, "B2.v0")
    trainer._log_rollout_data = mark(log_with_board, "B2.v0")


STEPS = [
    Step(
        "B2.v0",
        MODULE,
        _apply,
        ((MODULE, "RayPPOTrainer.fit"), (MODULE, "RayPPOTrainer._log_rollout_data")),
        "RLLoggingBoard in the v0 trainer",
    )
]
