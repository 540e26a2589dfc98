"""Permutation importance: how much worse the answers get when a column loses its meaning."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from assets.scoring import Scorer


def importance(
    onnx: bytes,
    frame: pd.DataFrame,
    features: Mapping[str, str],
    target: str,
    seed: int,
    max_rows: int = 5000,
    repeats: int = 3,
) -> dict[str, float]:
    """Weights ≥ 0 that sum to 1: the mean rise of the squared error over permutations of each column on labelled rows.

    Columns that only help by chance get 0; without a rise anywhere all weigh the same. Source: Breiman 2001, §10.
    """
    rng = np.random.default_rng(seed)
    known = frame[frame[target].notna()]
    if len(known) > max_rows:
        known = known.iloc[np.sort(rng.choice(len(known), max_rows, replace=False))]
    model, labels = Scorer(onnx), known[target].to_numpy(dtype=np.float64)
    rises = dict.fromkeys(features, 0.0)
    if len(known):
        before = float(np.mean((model(known, features) - labels) ** 2))
        for name in features:
            shuffled = [known.assign(**{name: rng.permutation(known[name].to_numpy())}) for _ in range(repeats)]
            after = [float(np.mean((model(rows, features) - labels) ** 2)) for rows in shuffled]
            rises[name] = max(float(np.mean(after)) - before, 0.0)
    total = sum(rises.values())
    if total <= 0:
        return dict.fromkeys(features, 1 / len(features))
    return {name: rise / total for name, rise in rises.items()}
