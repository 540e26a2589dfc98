"""Boosted trees of two classes as one sum: what serving computes twice as fast as the classifier they come as.

A TreeEnsembleClassifier of two classes whose trees all speak of one of them adds their leaves up, once, and makes two
chances of the sum. ONNX Runtime has a path for ensembles of one target and sends classifiers down the one for many.
"""

from typing import Any

# What a classifier's attributes are called where trees add up to a number.
RENAMED = {"class_ids": "target_ids", "class_nodeids": "target_nodeids", "class_treeids": "target_treeids",
           "class_weights": "target_weights"}  # fmt: skip
ONE = "one_sum/one"


def one_sum(model: Any) -> Any:
    """The same `onnx.ModelProto`, changed in place where it holds such a classifier whose label nobody asks for."""
    nodes = _needed(model.graph)
    found = [at for at, node in enumerate(nodes) if node.op_type == "TreeEnsembleClassifier" and _adds_up(node)]
    asked = {name for node in nodes for name in node.input} | {item.name for item in model.graph.output}
    if len(found) != 1 or nodes[found[0]].output[0] in asked:
        return model
    (at,) = found
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], *_summed(nodes[at]), *nodes[at + 1 :]])
    from onnx import TensorProto, helper

    model.graph.initializer.append(helper.make_tensor(ONE, TensorProto.FLOAT, [1], [1.0]))
    return model


def _needed(graph: Any) -> list[Any]:
    """The nodes that an output rests on, in order."""
    asked, kept = {item.name for item in graph.output}, []
    for node in reversed(graph.node):
        if asked.intersection(node.output):
            asked.update(node.input)
            kept.append(node)
    return kept[::-1]


def _adds_up(node: Any) -> bool:
    given = _attributes(node)
    two = list(given.get("classlabels_int64s", ())) == [0, 1]
    return two and given["post_transform"] == b"LOGISTIC" and len(set(given["class_ids"])) == 1


def _summed(node: Any) -> list[Any]:
    """Sum, chance of class 1, chance of class 0, both beside each other."""
    from onnx import helper

    given = _attributes(node)
    del given["classlabels_int64s"]
    kept = {RENAMED.get(name, name): value for name, value in given.items()}
    kept |= {"target_ids": [0] * len(kept["target_ids"]), "n_targets": 1, "post_transform": "NONE"}
    total, one, zero = (f"one_sum/{name}" for name in ("sum", "chance", "rest"))
    ensemble = helper.make_node("TreeEnsembleRegressor", list(node.input), [total], node.name, domain=node.domain)
    ensemble.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(kept.items()))
    return [
        ensemble,
        helper.make_node("Sigmoid", [total], [one]),
        helper.make_node("Sub", [ONE, one], [zero]),
        helper.make_node("Concat", [zero, one], [node.output[1]], axis=1),
    ]


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {item.name: helper.get_attribute_value(item) for item in node.attribute}
