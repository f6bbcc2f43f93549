"""Cases of recurrent, spatial, Fourier and quantised operators, and of those of onnxruntime (com.microsoft) and of
ONNX's preview; see cases.py."""
import numpy as np
from onnx import TensorProto, helper

from case import C, P, R, case, node
from cases import no_gradient, scan_body

MS = "com.microsoft"

# ---- recurrent ----

for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    results = 3 if op == "LSTM" else 2
    for direction, D in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        weights = [P(D, gates * 4, 3, lo=-1, hi=1), P(D, gates * 4, 4, lo=-1, hi=1), P(D, 2 * gates * 4, lo=-1, hi=1)]
        case(op, P(5, 2, 3), *weights, results=results, hidden_size=4, direction=direction)
        state = [P(D, 2, 4, lo=-1, hi=1)] * (results - 1)
        case(op, P(5, 2, 3), *weights, C([5, 2], np.int32), *state, results=results, hidden_size=4, direction=direction)
    one = [P(1, gates * 4, 3, lo=-1, hi=1), P(1, gates * 4, 4, lo=-1, hi=1)]
    case(op, P(3, 2, 3), *one, results=results, hidden_size=4)
    case(op, P(3, 2, 3), *one, results=results, hidden_size=4, clip=0.4)
    case(op, P(2, 3, 3), *one, results=results, hidden_size=4, layout=1)
    case(op, P(1, 1, 3), *one, results=results, hidden_size=4, takes=[1])
    case(op, P(4, 2, 3), *one, None, R([4, 1], np.int32), results=results, hidden_size=4)
three = [P(1, 12, 3, lo=-1, hi=1), P(1, 12, 4, lo=-1, hi=1), P(1, 24, lo=-1, hi=1)]
case("GRU", P(4, 2, 3), *three, results=2, hidden_size=4, linear_before_reset=1)
case("GRU", P(4, 2, 3), *three, results=2, hidden_size=4, activations=["HardSigmoid", "Softsign"])
case("RNN", P(4, 2, 3), P(2, 4, 3), P(2, 4, 4, lo=-1, hi=1), P(2, 8, lo=0.2, hi=0.9), results=2, hidden_size=4,
     direction="bidirectional", activations=["Relu", "Sigmoid"])
case("RNN", P(4, 2, 3), *[P(1, 4, 3), P(1, 4, 4, lo=-1, hi=1)], results=2, hidden_size=4, activations=["LeakyRelu"],
     activation_alpha=[0.2])
four = [P(1, 16, 3, lo=-1, hi=1), P(1, 16, 4, lo=-1, hi=1), P(1, 32, lo=-1, hi=1)]
case("LSTM", P(4, 2, 3), *four, None, None, None, P(1, 12, lo=-1, hi=1), results=3, hidden_size=4)
case("LSTM", P(4, 2, 3), *four, results=3, hidden_size=4, input_forget=1)

# ---- spatial ----

for align in (0, 1):
    for padding in ("zeros", "border", "reflection"):
        for mode in ("linear", "nearest", "cubic"):
            case("GridSample", P(2, 2, 4, 5), P(2, 3, 2, 2, lo=-1.15, hi=1.2), align_corners=align,
                 padding_mode=padding, mode=mode)
    case("GridSample", P(1, 2, 3, 4, 3), P(1, 2, 2, 2, 3, lo=-1.13, hi=1.19), align_corners=align)
    case("AffineGrid", P(2, 2, 3), C([2, 3, 4, 5]), align_corners=align)
    case("AffineGrid", P(1, 3, 4), C([1, 2, 2, 3, 4]), align_corners=align)
case("GridSample", P(1, 1, 3, 3), P(1, 2, 2, 2, lo=-0.9, hi=0.85), opset=16, mode="bilinear")
case("DeformConv", P(1, 2, 5, 5), P(3, 2, 3, 3), P(1, 18, 3, 3, lo=-0.9, hi=0.9), P(3))
case("DeformConv", P(1, 2, 4, 4), P(2, 2, 2, 2), P(1, 8, 5, 5, lo=-0.8, hi=0.9), None, P(1, 4, 5, 5, lo=0, hi=1),
     pads=[1, 1, 1, 1])
case("DeformConv", P(2, 4, 5, 4), P(4, 2, 2, 2), P(2, 16, 2, 2, lo=-0.8, hi=0.9), P(4), P(2, 8, 2, 2, lo=0, hi=1),
     group=2,
     offset_group=2, strides=[2, 1], dilations=[1, 2])
boxes = C(np.float32([[0.3, 0.6, 3.4, 4.2], [1.1, 0.2, 4.3, 2.7]]))
for attributes in (dict(output_height=2, output_width=2, sampling_ratio=2), dict(output_height=3, output_width=2),
                   dict(output_height=2, output_width=1, sampling_ratio=1,
                        coordinate_transformation_mode="output_half_pixel"),
                   dict(output_height=2, output_width=2, sampling_ratio=2, spatial_scale=0.5)):
    case("RoiAlign", P(2, 2, 5, 6), boxes, C([0, 1]), **attributes)
case("MaxRoiPool", P(2, 2, 6, 7), C(np.float32([[0, 0, 0, 4, 5], [1, 2, 1, 5, 3]])), pooled_shape=[2, 2])
case("MaxRoiPool", P(1, 1, 6, 7), C(np.float32([[0, 1, 3, 10, 9]])), pooled_shape=[2, 3], spatial_scale=0.5)

# ---- Fourier ----

case("DFT", P(2, 6, 1), C(6), C(1))
case("DFT", P(2, 5, 2), None, C(1))
case("DFT", P(2, 3, 4, 2), None, C(-3), inverse=1)
case("DFT", P(2, 7, 1), None, C(1), onesided=1)
case("DFT", P(2, 6, 1), C(8), C(1))
case("DFT", P(2, 6, 2), C(4), C(1))
case("DFT", P(2, 6, 1), opset=17, axis=1)
case("STFT", P(2, 12, 1), C(4), P(6))
case("STFT", P(1, 10, 1), C(3), None, C(5), onesided=0)
case("STFT", P(1, 10, 2), C(4), P(4), onesided=0)

# ---- quantised ----

def fake_quantize(zero, *operands, axis=1, **attributes):
    """A value that is quantised and comes back, as quantisation-aware training has it."""
    for op in ("QuantizeLinear", "DequantizeLinear"):
        back = {k: v for k, v in attributes.items() if k != "output_dtype"}
        case(op, *operands, zero, straight=True, tol=1e-4, nodes=[
            node("QuantizeLinear", "a0 a1 a2", "q", axis=axis, **attributes), node("DequantizeLinear", "q a1 a2",
                                                                                   "y0", axis=axis, **back)])


i8, u8 = TensorProto.INT8, TensorProto.UINT8
fake_quantize(C(np.uint8(128)), P(3, 5), P(lo=0.013, hi=0.014), output_dtype=u8)
fake_quantize(C(np.int8(-3)), P(3, 5), P(lo=0.011, hi=0.012), output_dtype=i8)
fake_quantize(C(np.zeros(3, np.int8)), P(2, 3, 4), P(3, lo=0.01, hi=0.02), axis=1, output_dtype=i8)
fake_quantize(C(np.zeros(2, np.int8)), P(2, 3), P(2, lo=0.03, hi=0.04), axis=0, output_dtype=i8)

# ---- sequences ----

double = helper.make_graph([helper.make_node("Sin", ["e"], ["r"])], "body",
                           [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
                           [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)])
case("SequenceMap", P(4, 3), C(2), nodes=[node("SplitToSequence", "a0 a1", "s"),
                                          node("SequenceMap", "s", "t", body=double),
                                          node("ConcatFromSequence", "t", "y0", axis=0)])
case("Optional", P(2, 3), nodes=[node("Optional", "a0", "o"), node("OptionalGetElement", "o", "p"),
                                 node("Sin", "p", "y0")])
case("OptionalGetElement", P(2, 3), nodes=[node("Optional", "a0", "o"), node("OptionalGetElement", "o", "y0")])
no_gradient("its result is bool, known when compiling", "OptionalHasElement", P(2, 3), nodes=[
    node("Optional", "a0", "o"), node("OptionalHasElement", "o", "y0")])
no_gradient("its results are what values repeat, and indices", "Unique", nodes=[
    node("Constant", "", "given", value_floats=[2.0, 1.0, 2.0]), node("Unique", "given", "y0")])
no_gradient("its result is which boxes are kept", "NonMaxSuppression", C([1, 2, 4]), C([1, 1, 2]), C([1]), nodes=[
    node("Constant", "", "b", value_floats=[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.9]), node("Reshape", "b a0", "boxes"),
    node("Constant", "", "s", value_floats=[0.9, 0.8]), node("Reshape", "s a1", "scores"),
    node("Constant", "", "iou", value_float=0.5), node("NonMaxSuppression", "boxes scores a2 iou", "y0")])

# ---- com.microsoft ----

for op in ("Gelu", "FastGelu", "QuickGelu"):
    case(op, P(3, 5), domain=MS)
    case(op, P(2, 3, 4), domain=MS)
case("QuickGelu", P(3, 4), domain=MS, alpha=1.0)
case("FastGelu", P(2, 3, 4), P(4), domain=MS)
case("BiasGelu", P(2, 3, 4), P(4), domain=MS)
case("BiasAdd", P(2, 3, 4), P(4), P(2, 3, 4), domain=MS)
case("BiasSplitGelu", P(2, 3, 8), P(8), domain=MS)
case("BiasSoftmax", P(2, 3, 4), P(2, 3, 4), domain=MS, axis=2, is_inner_broadcast=1)
case("BiasSoftmax", P(2, 2, 3, 4), P(2, 1, 3, 4), domain=MS, axis=3, is_inner_broadcast=1)
for op in ("FusedMatMul", "TransposeMatMul"):
    case(op, P(3, 4), P(4, 5), domain=MS, alpha=0.5)
    case(op, P(2, 4, 3), P(2, 5, 4), domain=MS, transA=1, transB=1)
    case(op, P(4), P(4, 3), domain=MS, alpha=2.0)
case("FusedGemm", P(3, 4), P(4, 5), P(5), domain=MS, activation="Relu", alpha=0.5)
case("FusedGemm", P(3, 4), P(5, 4), P(5), domain=MS, activation="LeakyRelu", activation_alpha=0.2, transB=1)
case("FusedConv", P(1, 2, 5, 5), P(3, 2, 3, 3), P(3), domain=MS, activation="Relu", pads=[1, 1, 1, 1])
case("FusedConv", P(1, 2, 5, 5), P(3, 2, 3, 3), P(3), P(1, 3, 3, 3), domain=MS, activation="Tanh")
case("FusedMatMulActivation", P(3, 4), P(4, 5), domain=MS, activation="Tanh")
case("NhwcConv", P(1, 5, 4, 2), P(3, 3, 2, 2), P(3), domain=MS, strides=[1, 1])
case("Trilu", P(3, 4), domain=MS, upper=0)
case("LayerNormalization", P(2, 3, 4), P(4), P(4), domain=MS)
case("SkipLayerNormalization", P(2, 3, 4), P(2, 3, 4), P(4), P(4), P(4), domain=MS, epsilon=1e-5)
case("SkipLayerNormalization", P(2, 3, 4), P(2, 3, 4), P(4), domain=MS, epsilon=1e-5)
case("SkipSimplifiedLayerNormalization", P(2, 3, 4), P(2, 3, 4), P(4), domain=MS, epsilon=1e-5)
for domain in ("", MS):
    case("SimplifiedLayerNormalization", P(2, 3, 4), P(4), domain=domain, epsilon=1e-5, axis=-1)
case("SkipLayerNormalization", P(2, 3, 4), P(2, 3, 4), P(4), P(4), domain=MS, epsilon=1e-5, results=2, nodes=[
    helper.make_node("SkipLayerNormalization", ["a0", "a1", "a2", "a3"], ["y0", "", "", "y1"], domain=MS,
                     epsilon=1e-5)])
ids = R([[1, 0, 2], [4, 4, 3]], np.int32)
case("EmbedLayerNormalization", ids, R([[0, 1, 1], [0, 0, 1]], np.int32), P(5, 4), P(3, 4), P(2, 4), P(4), P(4),
     domain=MS,
     epsilon=1e-5, nodes=[helper.make_node("EmbedLayerNormalization", [f"a{i}" for i in range(7)], ["y0", "m"],
                                           domain=MS,
                                           epsilon=1e-5)])
case("GroupNorm", P(2, 3, 2, 6), P(6), P(6), domain=MS, groups=3, epsilon=1e-5, activation=1, channels_last=1)
case("GroupNorm", P(2, 3, 2, 6), P(6), P(6), domain=MS, groups=2, epsilon=1e-5, activation=0, channels_last=1)
case("SkipGroupNorm", P(2, 3, 2, 6), P(6), P(6), P(2, 3, 2, 6), domain=MS, groups=3, epsilon=1e-5, activation=1,
     channels_last=1,
     results=2)
angles = np.arange(10).reshape(5, 2)
for interleaved in (0, 1):
    case("RotaryEmbedding", P(2, 3, 8), R([[0, 1, 2], [2, 3, 1]]), C(np.cos(angles)), C(np.sin(angles)), domain=MS,
         interleaved=interleaved)
    case("RotaryEmbedding", P(1, 2, 3, 4), C([1]), C(np.cos(angles)), C(np.sin(angles)), domain=MS,
         interleaved=interleaved)
case("GemmaRotaryEmbedding", P(1, 3, 4), P(1, 2, 3, 4), P(1, 2, 3, 4), P(1, 2, 3, 4), P(1, 2, 3, 4), domain=MS,
     results=2)
case("MultiHeadAttention", P(2, 3, 8), P(2, 4, 8), P(2, 4, 8), domain=MS, num_heads=2)
case("MultiHeadAttention", P(2, 3, 8), P(2, 3, 8), P(2, 3, 8), P(24), domain=MS, num_heads=2, unidirectional=1)
case("MultiHeadAttention", P(2, 3, 8), P(2, 4, 8), P(2, 4, 8), None, C([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32),
     domain=MS,
     num_heads=2)
case("MultiHeadAttention", P(1, 3, 8), P(1, 4, 8), P(1, 4, 8), None, None, P(1, 2, 3, 4), domain=MS, num_heads=2,
     scale=0.3)
case("Attention", P(2, 3, 6), P(6, 24), P(24), domain=MS, num_heads=2)
case("Attention", P(2, 3, 6), P(6, 24), P(24), domain=MS, num_heads=4, unidirectional=1)
for attributes in (dict(), dict(local_window_size=2), dict(softcap=2.0)):
    case("GroupQueryAttention", P(1, 4, 16), P(1, 4, 8), P(1, 4, 8), None, None, C([3], np.int32), C(4, np.int32),
         domain=MS,
         num_heads=4, kv_num_heads=2, **attributes)
case("GroupQueryAttention", P(1, 4, 16), P(1, 4, 8), P(1, 4, 8), None, None, C([3], np.int32), C(4, np.int32),
     C(np.cos(angles)), C(np.sin(angles)), domain=MS, num_heads=4, kv_num_heads=2, do_rotary=1)

case("GroupQueryAttention", P(2, 4, 16), P(2, 4, 8), P(2, 4, 8), None, None, C([3, 1], np.int32), C(4, np.int32), domain=MS,
     num_heads=4, kv_num_heads=2)

case("GatedRelativePositionBias", P(2, 3, 8), P(8), P(1, 2, 3, 3), P(4, 8, lo=-1, hi=1), P(8), P(1, 2, 1, 1), domain=MS,
     num_heads=2)

# ---- of the newest opsets ----

case("FlexAttention", P(1, 4, 3, 4), P(1, 2, 5, 4), P(1, 2, 5, 3), domain="ai.onnx.preview")
case("FlexAttention", P(1, 2, 3, 4), P(1, 2, 3, 4), P(1, 2, 3, 4), domain="ai.onnx.preview",
     score_mod=scan_body(node("Tanh", "s", "u"), takes=["s"], gives=["u"]),
     prob_mod=scan_body(node("Mul", "p p", "q"), takes=["p"], gives=["q"]))
for domain in ("", MS):
    for rule in ("linear", "gated", "delta", "gated_delta"):
        case("LinearAttention", P(1, 4, 8, lo=-1, hi=1), P(1, 4, 4, lo=-1, hi=1), P(1, 4, 6), None,
             P(1, 4, 4, lo=-1, hi=0) if "gated" in rule else None, P(1, 4, 2, lo=0, hi=1) if "delta" in rule else None,
             domain=domain, results=2, q_num_heads=4, kv_num_heads=2, update_rule=rule)
    case("LinearAttention", P(2, 3, 4, lo=-1, hi=1), P(2, 3, 4, lo=-1, hi=1), P(2, 3, 4), P(2, 2, 2, 2),
         P(2, 3, 2, lo=-1, hi=0), P(2, 3, 1, lo=0, hi=1), domain=domain, results=2, q_num_heads=2, kv_num_heads=2,
         scale=0.4)
    case("CausalConvWithState", P(2, 3, 6), P(3, 1, 3), P(3), domain=domain, results=2)
    case("CausalConvWithState", P(2, 3, 5), P(3, 1, 4), P(3), P(2, 3, 3), domain=domain, results=2, activation="silu")
    case("CausalConvWithState", P(1, 2, 2), P(2, 1, 3), domain=domain, activation="silu")
