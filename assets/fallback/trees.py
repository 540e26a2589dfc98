"""A cheaper copy of boosted trees: the first of them, as a fit stopped earlier would have left them.

Quantised weights are no alternative here: int8 leaves a tree ensemble's bytes and its time as they were, for its
thresholds and leaves are attributes of one node and no weights of matrices.
"""

from collections.abc import Iterator
from typing import Any

ENSEMBLES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
GROUPS = ("nodes", "class", "target")


class NotReducible(ValueError):
    """The model has no trees that can be left out. Says why."""


def fewer_trees(onnx: bytes, share: float) -> tuple[bytes, int, int]:
    """The model with the first `share` of its trees, how many these are, and of how many.

    Boosting adds trees one after the other, so the first ones are a model by themselves; a forest's average is not.
    """
    from onnx import load_model_from_string

    model = load_model_from_string(onnx)
    ensembles = [node for node in model.graph.node if node.op_type in ENSEMBLES]
    if len(ensembles) != 1:
        raise NotReducible(f"{len(ensembles)} tree ensembles in the ONNX, one is needed: leave fallback disabled")
    (ensemble,) = ensembles
    attributes = {attribute.name: attribute for attribute in ensemble.attribute}
    chance = any(node.op_type == "Sigmoid" and node.input[0] in ensemble.output for node in model.graph.node)
    if not chance and attributes["post_transform"].s != b"LOGISTIC":
        raise NotReducible("the trees' sum is no log-odds, so they are no boosted ones: leave fallback disabled")
    total = max(attributes["nodes_treeids"].ints) + 1
    kept = max(1, round(share * total))
    for group in GROUPS:
        _cut(attributes, group, kept)
    return bytes(model.SerializeToString(deterministic=True)), kept, total


def _cut(attributes: dict[str, Any], group: str, kept: int) -> None:
    """Entries of later trees out of every list of the group, which run side by side."""
    ids = attributes.get(f"{group}_treeids")
    if ids is None:
        return
    stays = [tree < kept for tree in ids.ints]
    for values in _lists(attributes, f"{group}_", len(stays)):
        values[:] = [value for value, keep in zip(values, stays, strict=True) if keep]


def _lists(attributes: dict[str, Any], prefix: str, size: int) -> Iterator[Any]:
    for name, attribute in attributes.items():
        if name.startswith(prefix):
            yield from (
                values for values in (attribute.ints, attribute.floats, attribute.strings) if len(values) == size
            )
