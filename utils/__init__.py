"""Operations around training: cluster, checkpoints, preflight, demo."""
