"""Parts of ``benchmarks/gpu_step.py``, one concept a module.

``plan`` what to run · ``inputs`` model and pages · ``run`` the launcher, watched · ``sampling`` memory while it runs ·
``count_transfers`` TransferQueue bytes · ``varying_reward`` the reward · ``parse`` what a run left behind, as figures ·
``floor`` the least time the arithmetic takes · ``result`` all figures of a run · ``table`` and ``compare`` print them ·
``memory`` peak memory by formula.
"""
