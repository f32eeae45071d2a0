"""The area under the ROC curve."""

import numpy as np


def auc(labels, scores):
    """How often an example that was clicked scores higher than one that was not; equal scores count
    for a half. NaN if all labels are alike."""
    labels = np.asarray(labels, bool)
    _, place, times = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(times) - (times - 1) / 2)[place]  # from 1, the mean of those that are equal
    clicks = int(labels.sum())
    others = len(labels) - clicks
    if clicks == 0 or others == 0:
        return float("nan")
    return float((rank[labels].sum() - clicks * (clicks + 1) / 2) / (clicks * others))
