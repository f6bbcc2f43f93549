"""Classes of ops, by which the time of a step is told.

KINDS has the kinds of ops in each; other kinds are in the class of their cost class, which traces of plans say.  A loss
head by blocks has its products in the loss; of a batch norm the statistics are a norm, and what follows is in a loop;
conversions and additions of biases inside of other ops are theirs.
"""
KINDS = {
    "products": "matmul matmul_f8",
    "convolutions": "conv conv_grad_x conv_grad_w",
    "attention": "attention attention_grad rope",
    "recurrences": "recurrence recurrence_grad",
    "norms": "layer_norm layer_norm_grad rms_norm rms_norm_grad bn_stats bn_grad_stats softmax softmax_grad "
             "log_softmax log_softmax_grad",
    "elementwise": "fused dropout dropout_mask draw",
    "loss": "cross_entropy cross_entropy_grad linear_cross_entropy linear_cross_entropy_grad report_loss "
            "report_accuracy",
    "optimizer": "update_shard sumsq step_scalars",
    "casts and reorders": "cast bitcast pack transpose copy concat split slice slice_grad pad broadcast to_f8 f8_scale",
    "communication": "issue wait all_gather reduce_scatter all_reduce reduce broadcast_flat broadcast_buffers "
                     "all_reduce_scalars all_reduce_moments all_reduce_means",
    "rest": "host",
}
COST_CLASSES = {"matmul": "products", "conv": "convolutions", "attention": "attention", "recurrence": "recurrences",
                "loops": "elementwise", "update": "optimizer", "collectives": "communication"}
CLASS_OF = {kind: name for name, kinds in KINDS.items() for kind in kinds.split()}


def class_of(kind, cost_class):
    """kind: of an op; cost_class: "class" of a predicted trace, None where it says nothing."""
    return CLASS_OF.get(kind) or COST_CLASSES.get(cost_class, "rest")
