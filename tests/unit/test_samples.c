/* Suite samples: how values depend on the samples of a batch; one row per graph. */
#include <stdlib.h>
#include <string.h>

#include "ir/samples.h"
#include "passes/passes.h"
#include "tests/unit/unit.h"

/* x, z: samples; ids: a number for each; w, k: parameters.  The last value is asked about. */
#define HEAD "module \"m\" level=MODEL batch=4 {\n" \
	"  input \"x\" : f32[4,6] {batched=1}\n  input \"z\" : f32[4,6] {batched=1}\n" \
	"  input \"im\" : f32[4,3,2,2] {batched=1}\n  input \"ids\" : i64[4,1] {batched=1}\n" \
	"  param \"w\" : f32[6,6] {trainable=1}\n  param \"k\" : f32[3] {trainable=1}\n" \
	"  forward {\n    %x : f32[4,6] = input \"x\"\n    %z : f32[4,6] = input \"z\"\n" \
	"    %im : f32[4,3,2,2] = input \"im\"\n" \
	"    %ids : i64[4,1] = input \"ids\"\n    %w : f32[6,6] = param \"w\"\n    %k : f32[3] = param \"k\"\n"
#define COMPARE "%c : f32[4,4] = matmul %x, %z {ta=0, tb=1}\n"
#define SUM "%s : f32[] = reduce_sum %x {axes=[0,1], keepdims=0}\n"
#define MEAN "%m : f32[] = reduce_mean %z {axes=[0,1], keepdims=0}\n"
#define SUM2 "%s1 : f32[1] = reshape %s {shape=[1]}\n%s2 : f32[1] = neg %s1\n"
#define TURNED "%r : f32[4,3,2] = reshape %x {shape=[4,3,2]}\n%t : f32[3,4,2] = transpose %r {perm=[1,0,2]}\n"
#define ROWS3 "%r : i64[3] = const {value=[0,1,2]}\n%two : i64[3,1] = const {value=[2]}\n"
#define PLACES "%p : f32[4,1] = const {value=[1.0,2.0,3.0,4.0]}\n"
#define TOTAL(op) "%t : f32[1,6] = " op " %x {axes=[0], keepdims=1}\n" \
	"%wk : f32[6] = reduce_sum %w {axes=[0], keepdims=0}\n"
#define BIN "{mode=\"avg\", size=[1,1], ratio=1, scale=1.0, half_pixel=1}"
/* Two boxes of each sample, in the images ids: of parts of x, the same for all samples, others for each, or trained. */
#define BOXES(ids, boxes) "%b4 : f32[4,4] = slice %x {starts=[0,0], sizes=[4,4], steps=[1,1]}\n" \
	"%b1 : f32[4,1,4] = reshape %b4 {shape=[4,1,4]}\n%b2 : f32[4,2,4] = concat %b1, %b1 {axis=1}\n" \
	"%bx : f32[8,4] = reshape %b2 {shape=[8,4]}\n" \
	"%pair : f32[1,2,4] = const {value=[0.0,0.0,1.0,1.0,0.0,0.0,2.0,2.0]}\n" \
	"%pairs : f32[4,2,4] = broadcast %pair {shape=[4,2,4]}\n%same : f32[8,4] = reshape %pairs {shape=[8,4]}\n" \
	"%i8 : f32[8,4] = iota {axis=0}\n%other : f32[8,4] = add %same, %i8\n%w36 : f32[36] = reshape %w {shape=[36]}\n" \
	"%w32 : f32[32] = slice %w36 {starts=[0], sizes=[32], steps=[1]}\n%wb : f32[8,4] = reshape %w32 {shape=[8,4]}\n" \
	"%n : i64[8] = const {value=[" ids "]}\n%y : f32[8,3,1,1] = roi_pool %im, " boxes ", %n " BIN "\n"
#define X1 "%x1 : f32[4,6,1] = reshape %x {shape=[4,6,1]}\n"
#define REPEATED "%rep : f32[4,6,6] = broadcast %w {shape=[4,6,6]}\n" X1
#define HEADS "%h : f32[4,6,2,3] = reshape %rep {shape=[4,6,2,3]}\n%o : f32[4,6,2,3], %lse : f32[4,2,6] = " \
	"attention %h, %h, %h {empty=\"zero\", layout=1, scale=0.5}\n%x2 : f32[4,6,1,1] = reshape %x1 {shape=[4,6,1,1]}\n"
#define OWN_WEIGHTS "%one : f32[1,12,2,2] = reshape %im {shape=[1,12,2,2]}\n%half : f32[4,3] = slice %x " \
	"{starts=[0,0], sizes=[4,3], steps=[1,1]}\n%ow : f32[4,3,1,1] = reshape %half {shape=[4,3,1,1]}\n" \
	"%aw0 : f32[4,1,3,1] = reshape %half {shape=[4,1,3,1]}\n%aw1 : f32[4,4,3,1] = broadcast %aw0 {shape=[4,4,3,1]}\n" \
	"%aw : f32[4,12,1,1] = reshape %aw1 {shape=[4,12,1,1]}\n%fr : f32[4,1,2,2] = slice %im " \
	"{starts=[0,0,0,0], sizes=[4,1,2,2], steps=[1,1,1,1]}\n%four : f32[1,4,2,2] = reshape %fr {shape=[1,4,2,2]}\n" \
	"%tw : f32[4,3,1,1] = reshape %half {shape=[4,3,1,1]}\n" \
	"%k3 : f32[3,1,1] = reshape %k {shape=[3,1,1]}\n"
#define CONV(group) " {strides=[1,1], pads=[0,0,0,0], dilations=[1,1], group=" group ", layout=0}\n"
#define ZEROS "%z0 : f32[4,2] = const {value=[0.0]}\n"
/* Three steps of a body with arguments a and b, of types t and u, of which the first, or both, are states; the last
 * value is the first state, negated. */
#define LOOP(results, operands, counts, t, u, body) \
	results "%all : f32[3," t "] = loop " operands " {" counts ", steps=3} do {\n" \
	"%a : f32[" t "] = argument {index=0}\n%b : f32[" u "] = argument {index=1}\n" body "\n}\n" \
	"%n : f32[" t "] = neg %y\n"
#define LOOP1(operands, counts, t, body) LOOP("%y : f32[" t "], ", operands, counts, t, t, body)
#define LOOP2(operands, t, body) \
	LOOP("%y : f32[" t "], %y1 : f32[" t "], ", operands, "states=2, stacked=0", t, t, body)
/* t: samples in three steps; q: the same for all samples; p4: not; zeros and ones. */
#define REPEATS "%t : f32[3,4,6] = broadcast %x {shape=[3,4,6]}\n" \
	"%w0 : f32[6] = reduce_sum %w {axes=[0], keepdims=0}\n%q : f32[4,6] = broadcast %w0 {shape=[4,6]}\n" \
	"%p : f32[4,1] = const {value=[1.0,2.0,3.0,4.0]}\n%p4 : f32[4,6] = broadcast %p {shape=[4,6]}\n" \
	"%zeros : f32[6] = const {value=[0.0]}\n%ones : f32[6] = const {value=[1.0]}\n"
/* A state of which each step makes `next`, where m is a total of the slice of t. */
#define TOTALS(first, kind, next) LOOP("%y : f32[6], ", first ", %t", "states=1, stacked=1", "6", "4,6", \
	"%m : f32[6] = reduce_" kind " %b {axes=[0], keepdims=0}\n%c : f32[6] = " next "\nyield %c, %m")
#define TWO "%two : f32[8,6] = concat %x, %z {axis=0}\n"

typedef struct Row {
	const char *body;
	SamplesKind kind;
	int axis;            /* of AXIS; with batches other than 1: axis + 10 * batches */
	const char *mixes;   /* text of the op that mixes, of the one that has places behind an @; "" = none */
	bool by_batch;       /* samples_is_scaled_by_batch */
} Row;

static const Row rows[] = {
	{"%y : f32[6,6] = matmul %w, %w {ta=0, tb=0}\n", SAMPLES_NONE, 0, "", false},
	{"%y : f32[4,6] = matmul %x, %w {ta=0, tb=1}\n", SAMPLES_AXIS, 0, "", false},
	{"%y : f32[6,4] = matmul %w, %x {ta=0, tb=1}\n", SAMPLES_AXIS, 1, "", false},
	{"%t : f32[6,4] = transpose %x {perm=[1,0]}\n%y : f32[4,6] = matmul %t, %w {ta=1, tb=0}\n",
		SAMPLES_AXIS, 0, "", false},
	{"%y : f32[4,2,3] = reshape %x {shape=[4,2,3]}\n", SAMPLES_AXIS, 0, "", false},
	{"%y : f32[8,3] = reshape %x {shape=[8,3]}\n", SAMPLES_AXIS, 0, "", false},
	{"%y : f32[3,8] = reshape %x {shape=[3,8]}\n", SAMPLES_LOST, 0, "", false},
	/* an axis that several dims share: whole batches behind one another, and elements of a sample */
	{TURNED "%y : f32[12,2] = reshape %t {shape=[12,2]}\n", SAMPLES_AXIS, 30, "", false},
	{TURNED "%y : f32[24] = reshape %t {shape=[24]}\n", SAMPLES_AXIS, 30, "", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n%y : f32[3,4,1,2] = reshape %m {shape=[3,4,1,2]}\n",
		SAMPLES_AXIS, 1, "", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n%y : f32[3,8] = reshape %m {shape=[3,8]}\n",
		SAMPLES_AXIS, 1, "", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n%y : f32[6,4] = reshape %m {shape=[6,4]}\n",
		SAMPLES_LOST, 0, "", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n"
		"%y : f32[4,2] = slice %m {starts=[8,0], sizes=[4,2], steps=[1,1]}\n", SAMPLES_AXIS, 0, "", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n"
		"%y : f32[4,2] = slice %m {starts=[2,0], sizes=[4,2], steps=[1,1]}\n", SAMPLES_AXIS, 0, "slice", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n%n : f32[12,2] = reshape %x {shape=[12,2]}\n"
		"%y : f32[12,2] = add %m, %n\n", SAMPLES_AXIS, 30, "add", false},
	{TURNED "%m : f32[12,2] = reshape %t {shape=[12,2]}\n%n : f32[2,12] = reshape %m {shape=[2,12]}\n",
		SAMPLES_LOST, 0, "", false},
	/* totals */
	{SUM, SAMPLES_SUM, 0, "", false},
	{MEAN, SAMPLES_MEAN, 0, "", false},
	{SUM "%h : f32[] = const {value=[0.5]}\n%y : f32[] = mul %h, %s\n", SAMPLES_SUM, 0, "", false},
	{SUM "%h : f32[] = const {value=[4.0]}\n%y : f32[] = div %s, %h\n", SAMPLES_SUM, 0, "", true},
	{SUM "%h : f32[] = const {value=[0.125]}\n%y : f32[] = mul %s, %h\n", SAMPLES_SUM, 0, "", true},
	{"%h : f32[] = const {value=[24.0]}\n"
		"%d : f32[4,6] = div %x, %h\n%y : f32[] = reduce_sum %d {axes=[0,1], keepdims=0}\n",
		SAMPLES_SUM, 0, "", true},
	{MEAN "%h : f32[] = const {value=[8.0]}\n%y : f32[] = mul %m, %h\n", SAMPLES_MEAN, 0, "", true},
	{SUM MEAN "%y : f32[] = add %s, %m\n", SAMPLES_LOST, 0, "", false},
	{SUM MEAN "%y : f32[] = mul %s, %m\n", SAMPLES_LOST, 0, "mul", false},
	{SUM "%y : f32[] = sqrt %s\n", SAMPLES_LOST, 0, "sqrt", false},
	{SUM SUM2 "%y : f32[2] = concat %s1, %s2 {axis=0}\n", SAMPLES_SUM, 0, "", false},
	{"%r : f32[4] = reduce_max %x {axes=[1], keepdims=0}\n%y : f32[] = reduce_sum %r {axes=[0], keepdims=0}\n",
		SAMPLES_SUM, 0, "", false},
	{"%y : f32[6] = reduce_max %x {axes=[0], keepdims=0}\n", SAMPLES_LOST, 0, "reduce_max", false},
	{"%p : f32[] = reduce_sum %w {axes=[0,1], keepdims=0}\n" MEAN "%y : f32[] = add %p, %m\n",
		SAMPLES_MEAN, 0, "", false},
	{"%p : f32[] = reduce_sum %w {axes=[0,1], keepdims=0}\n" SUM "%y : f32[] = add %p, %s\n",
		SAMPLES_LOST, 0, "", false},
	/* samples that meet */
	{COMPARE, SAMPLES_AXIS, 0, "matmul", false},
	{COMPARE "%y : f32[] = reduce_mean %c {axes=[0,1], keepdims=0}\n", SAMPLES_MEAN, 0, "matmul", false},
	{"%y : f32[6,6] = matmul %x, %z {ta=1, tb=0}\n", SAMPLES_SUM, 0, "", false},
	{"%m : f32[1,6] = reduce_mean %x {axes=[0], keepdims=1}\n%y : f32[4,6] = sub %x, %m\n",
		SAMPLES_AXIS, 0, "sub", false},
	{"%y : f32[4,6] = softmax %x {axis=1}\n", SAMPLES_AXIS, 0, "", false},
	{"%y : f32[4,6] = softmax %x {axis=0}\n", SAMPLES_AXIS, 0, "softmax", false},
	{"%c : f32[4,4,2,2] = conv %im, %im, _ {strides=[1,1], pads=[1,1,0,0], dilations=[1,1], group=1, layout=0}\n"
		"%y : f32[4,4,2,2] = relu %c\n", SAMPLES_LOST, 0, "conv", false},
	{"%h : f32[4,4] = slice %x {starts=[0,0], sizes=[4,4], steps=[1,1]}\n"
		"%s : f32[4] = reduce_sum %z {axes=[1], keepdims=0}\n"
		"%y : f32[4,4], %m : f32[4,1], %r : f32[4,1] = layer_norm %h, %s {axis=1, eps=1e-05}\n"
		"%l : f32[4,4] = relu %y\n", SAMPLES_LOST, 0, "layer_norm", false},
	{"%y : f32[4,6], %m : f32[4,1], %r : f32[4,1], %q : f32[4,6] = layer_norm %x, _, _, %z {axis=1, eps=1e-05}\n"
		"%l : f32[4,6] = relu %y\n", SAMPLES_AXIS, 0, "", false},
	{"%y : f32[3,6] = slice %x {starts=[1,0], sizes=[3,6], steps=[1,1]}\n", SAMPLES_AXIS, 0, "slice", false},
	{TWO, SAMPLES_AXIS, 20, "", false},
	{TWO "%y : f32[2,4,6] = reshape %two {shape=[2,4,6]}\n", SAMPLES_AXIS, 1, "", false},
	{"%h : f32[8,3] = reshape %x {shape=[8,3]}\n%g : f32[4,3] = slice %z {starts=[0,0], sizes=[4,3], steps=[1,1]}\n"
		"%y : f32[12,3] = concat %h, %g {axis=0}\n%l : f32[3,4,3] = reshape %y {shape=[3,4,3]}\n",
		SAMPLES_LOST, 0, "", false},
	{TWO "%y : f32[8,8] = matmul %two, %two {ta=0, tb=1}\n", SAMPLES_AXIS, 20, "matmul", false},
	{TWO "%a : f32[4,6], %y : f32[4,6] = split %two {axis=0, sizes=[4,4]}\n", SAMPLES_AXIS, 0, "", false},
	{TWO "%a : f32[5,6], %y : f32[3,6] = split %two {axis=0, sizes=[5,3]}\n", SAMPLES_AXIS, 0, "split", false},
	/* splits: parts of each sample; of what depends on none, parts are constant where the whole is */
	{"%a : f32[4,3], %y : f32[4,3] = split %x {axis=1, sizes=[3,3]}\n", SAMPLES_AXIS, 0, "", false},
	{"%a : f32[2,6], %y : f32[2,6] = split %x {axis=0, sizes=[2,2]}\n", SAMPLES_AXIS, 0, "split", false},
	{"%r : f32[1,6] = reduce_sum %w {axes=[0], keepdims=1}\n%b : f32[4,6] = broadcast %r {shape=[4,6]}\n"
		"%a : f32[4,3], %c : f32[4,3] = split %b {axis=1, sizes=[3,3]}\n%d : f32[4,9] = concat %x, %c {axis=1}\n",
		SAMPLES_AXIS, 0, "", false},
	{PLACES "%pp : f32[4,6] = broadcast %p {shape=[4,6]}\n"
		"%a : f32[4,3], %c : f32[4,3] = split %pp {axis=1, sizes=[3,3]}\n"
		"%d : f32[4,9] = concat %x, %c {axis=1}\n", SAMPLES_AXIS, 0, "@concat", false},
	/* boxes: of a sample's own image where the graph says so */
	{BOXES("0,0,1,1,2,2,3,3", "%bx"), SAMPLES_AXIS, 0, "", false},
	{BOXES("0,0,1,1,2,2,3,-1", "%bx"), SAMPLES_AXIS, 0, "@roi_pool", false},
	{BOXES("0,1,2,3,0,1,2,3", "%bx"), SAMPLES_LOST, 0, "roi_pool", false},
	{BOXES("0,0,1,1,2,2,3,4", "%bx"), SAMPLES_LOST, 0, "roi_pool", false},
	{BOXES("0,0,1,1,2,2,3,3", "%same"), SAMPLES_AXIS, 0, "", false},
	{BOXES("0,0,1,1,2,2,3,3", "%other"), SAMPLES_AXIS, 0, "@roi_pool", false},
	{BOXES("0,0,1,1,2,2,3,3", "%wb"), SAMPLES_AXIS, 0, "@roi_pool", false},
	{BOXES("0", "%bx") "%f : i64[4] = reshape %ids {shape=[4]}\n"
		"%y2 : f32[4,3,1,1] = roi_pool %im, %b4, %f " BIN "\n",
		SAMPLES_LOST, 0, "roi_pool", false},
	{BOXES("0", "%bx") "%k1 : f32[1,3,1,1] = reshape %k {shape=[1,3,1,1]}\n"
		"%y2 : f32[8,3,1,1] = roi_pool %k1, %bx, %n " BIN "\n", SAMPLES_AXIS, 0, "", false},
	/* one number of a row: x[arange(4), ids] */
	{"%i : i64[4,1] = iota {axis=0}\n%c : i64[4,2] = concat %i, %ids {axis=1}\n"
		"%y : f32[4] = gather_nd %x, %c {batch_dims=0}\n", SAMPLES_AXIS, 0, "", false},
	{"%i : i64[1] = const {value=[1]}\n%y : f32[1,6] = gather %x, %i {axis=0}\n", SAMPLES_LOST, 0, "gather", false},
	{"%f : i64[4] = reshape %ids {shape=[4]}\n%y : f32[4,6] = gather %w, %f {axis=0}\n", SAMPLES_AXIS, 0, "", false},
	{ROWS3 "%i : i64[3,1] = reshape %r {shape=[3,1]}\n%c : i64[3,2] = concat %i, %two {axis=1}\n"
		"%y : f32[3] = gather_nd %x, %c {batch_dims=0}\n", SAMPLES_LOST, 0, "", false},
	{"%i : i64[4] = iota {axis=0}\n%r : i64[1,4] = reshape %i {shape=[1,4]}\n"
		"%b : i64[4,4] = broadcast %r {shape=[4,4]}\n%e : i64[4,4,1] = reshape %b {shape=[4,4,1]}\n"
		"%c : i64[4,4,2] = concat %e, %e {axis=2}\n%y : f32[4,4] = gather_nd %x, %c {batch_dims=0}\n",
		SAMPLES_LOST, 0, "", false},
	/* weights of each sample's own: samples are groups of channels; where they are no groups, all meet */
	{OWN_WEIGHTS "%y : f32[1,4,2,2] = conv %one, %ow" CONV("4"), SAMPLES_AXIS, 1, "", false},
	{OWN_WEIGHTS "%y : f32[1,4,2,2] = conv %one, %aw" CONV("1"), SAMPLES_LOST, 0, "conv", false},
	{OWN_WEIGHTS "%y : f32[4,4,2,2] = conv %im, %ow" CONV("1"), SAMPLES_LOST, 0, "conv", false},
	{OWN_WEIGHTS "%y : f32[1,12,2,2] = conv_grad_x %four, %tw {strides=[1,1], pads=[0,0,0,0], "
		"dilations=[1,1], group=4, layout=0, shape=[1,12,2,2]}\n", SAMPLES_AXIS, 1, "", false},
	{OWN_WEIGHTS "%kb : f32[4,3,1,1] = broadcast %k3 {shape=[4,3,1,1]}\n"
		"%m : f32[1,12,1,1] = reshape %kb {shape=[1,12,1,1]}\n"
		"%y : f32[1,4,1,1] = conv %m, %ow" CONV("4"), SAMPLES_AXIS, 1, "", false},
	{OWN_WEIGHTS PLACES "%p4 : f32[4,1,1,1] = reshape %p {shape=[4,1,1,1]}\n"
		"%pb : f32[4,3,1,1] = broadcast %p4 {shape=[4,3,1,1]}\n"
		"%m : f32[1,12,1,1] = reshape %pb {shape=[1,12,1,1]}\n%y : f32[1,4,1,1] = conv %m, %ow" CONV("4"),
		SAMPLES_AXIS, 1, "@conv", false},
	/* weights that were repeated for each sample are the same for all of them, also behind self-attention */
	{REPEATED "%a : f32[4,6,3], %b : f32[4,6,3] = split %rep {axis=2, sizes=[3,3]}\n%y : f32[4,6,3] = mul %x1, %b\n",
		SAMPLES_AXIS, 0, "", false},
	{PLACES "%q : f32[4,6] = broadcast %p {shape=[4,6]}\n"
		"%a : f32[4,3], %b : f32[4,3] = split %q {axis=1, sizes=[3,3]}\n"
		"%u : f32[4,3], %v : f32[4,3] = split %x {axis=1, sizes=[3,3]}\n%y : f32[4,3] = mul %u, %b\n",
		SAMPLES_AXIS, 0, "@mul", false},
	{REPEATED HEADS "%y : f32[4,6,2,3] = mul %x2, %o\n", SAMPLES_AXIS, 0, "", false},
	{PLACES "%p3 : f32[4,1,1] = reshape %p {shape=[4,1,1]}\n"
		"%rep : f32[4,6,6] = broadcast %p3 {shape=[4,6,6]}\n" X1 HEADS
		"%y : f32[4,6,2,3] = mul %x2, %o\n", SAMPLES_AXIS, 0, "@mul", false},
	{"%i : i64[4,1] = iota {axis=0}\n%o : i64[4,1] = const {value=[0,3,2,5]}\n%c : i64[4,2] = concat %i, %o {axis=1}\n"
		"%y : f32[4] = gather_nd %x, %c {batch_dims=0}\n", SAMPLES_AXIS, 0, "@gather_nd", false},
	{"%i : i64[4,1] = iota {axis=0}\n%o : i64[4,1] = const {value=[5]}\n%c : i64[4,2] = concat %i, %o {axis=1}\n"
		"%y : f32[4] = gather_nd %x, %c {batch_dims=0}\n", SAMPLES_AXIS, 0, "", false},
	{"%i : i64[2,1] = const {value=[2,1]}\n%y : f32[2,1] = gather_elements %x, %i {axis=1}\n",
		SAMPLES_AXIS, 0, "gather_elements", false},
	{"%i : i64[4,1] = const {value=[2]}\n%y : f32[4,1] = gather_elements %x, %i {axis=1}\n",
		SAMPLES_AXIS, 0, "", false},
	{"%y : f32[4,1] = gather_elements %x, %ids {axis=1}\n", SAMPLES_AXIS, 0, "", false},
	/* numbers of their own for each place in the batch */
	{PLACES "%y : f32[4,6] = mul %x, %p\n", SAMPLES_AXIS, 0, "@mul", false},
	{PLACES "%d : f32[4,6] = mul %x, %p\n%y : f32[] = reduce_sum %d {axes=[0,1], keepdims=0}\n",
		SAMPLES_SUM, 0, "@mul", false},
	{PLACES "%t : f32[1,4] = transpose %p {perm=[1,0]}\n%m : f32[6,4] = matmul %w, %x {ta=0, tb=1}\n"
		"%y : f32[6,4] = sub %m, %t\n", SAMPLES_AXIS, 1, "@sub", false},
	{PLACES "%c : f32[4,7] = concat %x, %p {axis=1}\n", SAMPLES_AXIS, 0, "@concat", false},
	{PLACES "%x3 : f32[4,1,6] = reshape %x {shape=[4,1,6]}\n%p3 : f32[4,1,1] = reshape %p {shape=[4,1,1]}\n"
		"%w3 : f32[4,6,6] = mul %w, %p3\n%y : f32[4,1,6] = matmul %x3, %w3 {ta=0, tb=0}\n",
		SAMPLES_AXIS, 0, "@matmul", false},
	{"%p : f32[4,1] = const {value=[2.0,2.0,2.0,2.0]}\n%y : f32[4,6] = mul %x, %p\n", SAMPLES_AXIS, 0, "", false},
	{"%r : f32[1,6] = reduce_sum %w {axes=[0], keepdims=1}\n%b : f32[4,6] = broadcast %r {shape=[4,6]}\n"
		"%e : f32[4,6] = exp %b\n%v : f32[4,6] = matmul %e, %w {ta=0, tb=0}\n%c : f32[4,12] = concat %x, %v {axis=1}\n",
		SAMPLES_AXIS, 0, "", false},
	{"%o : i64[1,2] = const {value=[1,0]}\n%b : i64[4,2] = broadcast %o {shape=[4,2]}\n"
		"%g : f32[4,2,6] = gather %w, %b {axis=0}\n%x3 : f32[4,1,6] = reshape %x {shape=[4,1,6]}\n"
		"%y : f32[4,2,6] = add %x3, %g\n", SAMPLES_AXIS, 0, "", false},
	/* a bias counts once: beside a mean it stays one, a sum of two batches would have it twice */
	{TOTAL("reduce_sum") "%y : f32[1,6] = matmul %t, %w, %wk {ta=0, tb=0}\n", SAMPLES_LOST, 0, "", false},
	{TOTAL("reduce_mean") "%y : f32[1,6] = matmul %t, %w, %wk {ta=0, tb=0}\n", SAMPLES_MEAN, 0, "", false},
	{TOTAL("reduce_sum") "%y : f32[1,6] = matmul %t, %w {ta=0, tb=0}\n", SAMPLES_SUM, 0, "", false},
	{TOTAL("reduce_sum") "%y : f32[6,6] = matmul %x, %z, %wk {ta=1, tb=0}\n", SAMPLES_LOST, 0, "", false},
	/* loops: what holds in all steps */
	{TURNED ZEROS LOOP1("%z0, %t", "states=1, stacked=1", "4,2", "%c : f32[4,2] = add %a, %b\nyield %c, %c"),
		SAMPLES_AXIS, 0, "", false},
	{TURNED ZEROS LOOP1("%z0, %t", "states=1, stacked=1", "4,2", "%c : f32[4,2] = add %a, %b\nyield %c, %c")
		"%n3 : f32[3,4,2] = neg %all\n", SAMPLES_AXIS, 1, "", false},
	{ZEROS LOOP2("%z0, %z0", "4,2", "%c : f32[4,2] = neg %a\nyield %b, %c, %c"),
		SAMPLES_NONE, 0, "", false},
	/* samples reach the first state through the second one, in the second step */
	{TURNED ZEROS "%r0 : f32[4,2] = reduce_sum %r {axes=[1], keepdims=0}\n"
		LOOP2("%z0, %r0", "4,2", "%c : f32[4,2] = neg %a\nyield %b, %c, %c"),
		SAMPLES_AXIS, 0, "", false},
	{"%t : f32[3,4,6] = broadcast %x {shape=[3,4,6]}\n" LOOP1("%x, %t", "states=1, stacked=1", "4,6",
		"%m : f32[1,6] = reduce_max %a {axes=[0], keepdims=1}\n%c : f32[4,6] = add %m, %b\nyield %c, %c"),
		SAMPLES_LOST, 0, "reduce_max", false},
	{PLACES "%t : f32[3,4,6] = broadcast %x {shape=[3,4,6]}\n%q : f32[4,6] = broadcast %p {shape=[4,6]}\n"
		LOOP1("%x, %q", "states=1, stacked=0", "4,6", "%c : f32[4,6] = mul %a, %b\nyield %c, %c"),
		SAMPLES_AXIS, 0, "@mul", false},
	{PLACES "%q : f32[4,6] = broadcast %p {shape=[4,6]}\n"
		LOOP2("%q, %x", "4,6", "%c : f32[4,6] = neg %b\nyield %c, %b, %c"),
		SAMPLES_AXIS, 0, "@loop", false},
	/* states that depend on no sample: what is the same for all of them stays so */
	{REPEATS LOOP1("%q, %p4", "states=1, stacked=0", "4,6", "%c : f32[4,6] = neg %a\nyield %c, %b")
		"%xy : f32[4,6] = add %x, %y\n", SAMPLES_AXIS, 0, "", false},
	{REPEATS LOOP1("%x, %q", "states=1, stacked=0", "4,6",
		"%c : f32[4,6] = neg %a\n%d : f32[4,6] = neg %b\nyield %c, %d")
		"%xy : f32[3,4,6] = add %t, %all\n", SAMPLES_AXIS, 1, "", false},
	{REPEATS LOOP1("%q, %q", "states=1, stacked=0", "4,6", "%c : f32[4,6] = add %a, %b\nyield %c, %c")
		"%xy : f32[3,4,6] = add %t, %all\n", SAMPLES_AXIS, 1, "", false},
	{REPEATS LOOP1("%q, %p4", "states=1, stacked=0", "4,6", "%c : f32[4,6] = add %a, %b\nyield %c, %c")
		"%xy : f32[3,4,6] = add %t, %all\n", SAMPLES_AXIS, 1, "@add", false},
	/* totals of steps, and their sums over the steps */
	{REPEATS TOTALS("%zeros", "mean", "add %a, %m"), SAMPLES_MEAN, 0, "", false},
	{REPEATS TOTALS("%zeros", "sum", "add %a, %m"), SAMPLES_SUM, 0, "", false},
	{REPEATS TOTALS("%ones", "mean", "sub %a, %m"), SAMPLES_MEAN, 0, "", false},
	{REPEATS TOTALS("%ones", "sum", "add %a, %m"), SAMPLES_LOST, 0, "", false},
	{REPEATS TOTALS("%zeros", "mean", "mul %a, %m"), SAMPLES_LOST, 0, "mul", false},
	{REPEATS TOTALS("%zeros", "mean", "add %a, %m") "%xy : f32[4,6] = add %x, %y\n", SAMPLES_AXIS, 0, "add", false},
	{REPEATS TOTALS("%zeros", "sum", "add %a, %m") "%xy : f32[4,6] = add %x, %y\n", SAMPLES_AXIS, 0, "add", false},
	{REPEATS TOTALS("%zeros", "sum", "neg %a") "%s : f32[6] = reduce_sum %all {axes=[0], keepdims=0}\n",
		SAMPLES_SUM, 0, "", false},
	{REPEATS "%tm : f32[3,6] = reduce_mean %t {axes=[1], keepdims=0}\n"
		LOOP1("%zeros, %tm", "states=1, stacked=1", "6", "%c : f32[6] = add %a, %b\nyield %c, %c"),
		SAMPLES_MEAN, 0, "", false},
	{REPEATS TOTALS("%ones", "sum", "add %a, %m") "%xy : f32[4,6] = add %x, %y\n", SAMPLES_LOST, 0, "add", false},
	/* the same without a loop: a sum and a number are no total, but hold all samples */
	{TOTAL("reduce_sum") "%o : f32[6] = const {value=[1.0]}\n%y : f32[1,6] = add %t, %o\n", SAMPLES_LOST, 0, "", false},
	{TOTAL("reduce_sum") "%o : f32[6] = const {value=[1.0]}\n%y : f32[1,6] = sub %o, %t\n%n : f32[1,6] = sqrt %y\n"
		"%q : f32[4,6] = mul %n, %x\n", SAMPLES_LOST, 0, "mul", false},
	{TOTAL("reduce_sum") "%o : f32[6] = const {value=[1.0]}\n%y : f32[1,6] = add %t, %o\n"
		"%q : f32[4,1] = matmul %x, %y {ta=0, tb=1}\n", SAMPLES_LOST, 0, "matmul", false},
	{TOTAL("reduce_sum") "%t6 : f32[6] = reshape %t {shape=[6]}\n%q : f32[4,6] = matmul %x, %w, %t6 {ta=0, tb=0}\n",
		SAMPLES_LOST, 0, "matmul", false},
	/* zeros that become what is lost are no sums */
	{REPEATS "%z46 : f32[4,6] = broadcast %zeros {shape=[4,6]}\n" LOOP1("%z46, %x", "states=1, stacked=0", "4,6",
		"%h : f32[6,4] = transpose %b {perm=[1,0]}\n%g : f32[4,6] = reshape %h {shape=[4,6]}\n"
		"%c : f32[4,6] = add %a, %g\nyield %c, %c"), SAMPLES_LOST, 0, "", false},
	/* a total turns into a sum over samples of another factor */
	{REPEATS TOTALS("%zeros", "sum", "sub %m, %a"), SAMPLES_SUM, 0, "", false},
	{REPEATS "%sx : f32[6] = reduce_sum %x {axes=[0], keepdims=0}\n%two : f32[6] = const {value=[2.0]}\n"
		LOOP1("%sx, %two", "states=1, stacked=0", "6", "%c : f32[6] = const {value=[2.0]}\n"
		"%d : f32[6] = mul %a, %c\nyield %d, %b"), SAMPLES_LOST, 0, "loop", false},
	/* the samples themselves are the steps */
	{"%w0 : f32[6] = reduce_sum %w {axes=[0], keepdims=0}\n"
		"%y : f32[6] = loop %w0, %x {states=1, stacked=1, steps=4} do {\n%a : f32[6] = argument {index=0}\n"
		"%b : f32[6] = argument {index=1}\n%c : f32[6] = add %a, %b\nyield %c\n}\n",
		SAMPLES_LOST, 0, "loop", false},
	/* batch norm: statistics of the batch; of rows that are channels, not */
	{"%y : f32[4,3,2,2], %bm : f32[3], %bv : f32[3] = batch_norm %im, %k, %k {eps=1e-05, layout=0}\n"
		"%r : f32[4,3,2,2] = relu %y\n", SAMPLES_AXIS, 0, "batch_norm", false},
};

static Samples ask(const Row *r, bool statistics, const char **mixes, bool *by_batch)
{
	static char mixing[64];
	Diag d = {.out = stderr};
	Arena *a = arena_new();
	Module *m = ir_parse("samples", arena_printf(a, "%s%s  }\n}\n", HEAD, r->body), &d);
	CU_ASSERT_FATAL(m && ir_verify(m, NULL, &d));
	SampleScan *scan = samples_new(m, a, statistics);
	const Op *last = m->last[SEC_FORWARD];
	Samples x = samples_of(scan, last->out[last->n_out - 1]);
	*by_batch = samples_is_scaled_by_batch(scan, &x);
	*mixes = x.mixes ? op_info[x.mixes->kind].text
		: x.placed ? arena_printf(m->arena, "@%s", op_info[x.placed->kind].text) : "";
	snprintf(mixing, sizeof(mixing), "%s", *mixes);
	*mixes = mixing;
	x.axis += x.batches == 1 ? 0 : 10 * (int)x.batches;
	if (x.kind != r->kind || (x.kind == SAMPLES_AXIS && x.axis != r->axis) || *by_batch != r->by_batch)
		fprintf(stderr, "%skind %d, axis %d, scale %g\n", r->body, x.kind, x.axis, x.scale);
	ir_module_free(m);
	arena_free(a);
	return x;
}

static void kinds(void)
{
	for (int i = 0; i < COUNT_OF(rows); i++) {
		bool by_batch;
		const char *mixes;
		Samples x = ask(&rows[i], true, &mixes, &by_batch);
		CU_ASSERT_EQUAL(x.kind, rows[i].kind);
		CU_ASSERT(x.kind != SAMPLES_AXIS || x.axis == rows[i].axis);
		CU_ASSERT_EQUAL(by_batch, rows[i].by_batch);
		UNIT_CHECK(!strcmp(mixes, rows[i].mixes), rows[i].body);
	}
}

/* Training takes a batch norm as something that keeps samples apart. */
static void training(void)
{
	bool by_batch;
	const char *mixes;
	ask(&rows[COUNT_OF(rows) - 1], false, &mixes, &by_batch);
	CU_ASSERT_STRING_EQUAL(mixes, "");
}

/* ---- reshapes: one sample is followed as two are ---- */

/* Steps first, all rows, steps, heads beside the samples, and all rows again. */
static const char turned[] = "module \"m\" level=MODEL batch=%d {\n  input \"x\" : f32[%d,6,4] {batched=1}\n"
	"  forward {\n"
	"    %%x : f32[%d,6,4] = input \"x\"\n    %%t : f32[6,%d,4] = transpose %%x {perm=[1,0,2]}\n"
	"    %%r : f32[%d,4] = reshape %%t {shape=[%d,4]}\n    %%s : f32[6,%d,4] = reshape %%r {shape=[6,%d,4]}\n"
	"    %%h : f32[6,%d,2] = reshape %%s {shape=[6,%d,2]}\n    %%j : f32[%d,4] = reshape %%h {shape=[%d,4]}\n  }\n}\n";

static void reshapes(void)
{
	static const struct { int axis, batches; } wanted[] = {{0, 1}, {1, 1}, {0, 6}, {1, 1}, {1, 1}, {0, 6}};
	for (int b = 1; b <= 4; b *= 2) {
		Diag d = {.out = stderr};
		Arena *a = arena_new();
		Module *m = ir_parse("samples", arena_printf(a, turned, b, b, b, b, 6 * b, 6 * b, b, b, 2 * b, 2 * b, 6 * b,
			6 * b), &d);
		CU_ASSERT_FATAL(m && ir_verify(m, NULL, &d));
		SampleScan *scan = samples_new(m, a, false);
		int i = 0;
		IR_FOR_OPS(m, SEC_FORWARD, op) {
			Samples x = samples_of(scan, op->out[0]);
			UNIT_CHECK(x.kind == SAMPLES_AXIS && x.axis == wanted[i].axis && x.batches == wanted[i].batches,
				op->out[0]->name);
			i++;
		}
		ir_module_free(m);
		arena_free(a);
	}
}

/* ---- batches of one sample: what canon leaves of a sum and a mean over them looks the same ---- */

#define ONE "module \"m\" level=MODEL batch=1 {\n  input \"x\" : f32[1,4] {batched=1}\n" \
	"  param \"w\" : f32[4] {trainable=1}\n  output \"loss\" : f32[]\n  forward {\n" \
	"    %x : f32[1,4] = input \"x\"\n    %w : f32[4] = param \"w\"\n    %q : f32[1,4] = mul %x, %w\n"

typedef struct OneRow { const char *body, *over; } OneRow; /* over: sum, mean, ratio; "" = assumed, with a warning */

static const OneRow one_rows[] = {
	{"%l : f32[] = reduce_sum %q {axes=[0,1], keepdims=0}\n", "sum"},
	{"%l : f32[] = reduce_mean %q {axes=[0,1], keepdims=0}\n", "mean"},
	{"%m : f32[4] = reduce_mean %q {axes=[0], keepdims=0}\n"
		"%l : f32[] = reduce_sum %m {axes=[0], keepdims=0}\n", "mean"},
	{"%m : f32[4] = reduce_sum %q {axes=[0], keepdims=0}\n%l : f32[] = reduce_mean %m {axes=[0], keepdims=0}\n", "sum"},
	{"%m : f32[1,4] = reduce_sum %x {axes=[0], keepdims=1}\n%n : f32[1,4] = mul %m, %w\n"
		"%l : f32[] = reduce_mean %n {axes=[0,1], keepdims=0}\n", "sum"},
	{"%r : f32[1] = reduce_sum %q {axes=[1], keepdims=0}\n"
		"%l : f32[] = reduce_mean %r {axes=[0], keepdims=0}\n", "mean"},
	{"%s : f32[] = reduce_sum %q {axes=[0,1], keepdims=0}\n%n : f32[] = const {value=[1.0]}\n"
		"%l : f32[] = div %s, %n\n", ""},
	{"%s : f32[] = reduce_sum %q {axes=[0,1], keepdims=0}\n%n : f32[] = const {value=[4.0]}\n"
		"%l : f32[] = div %s, %n\n", ""},
	{"%n : f32[] = const {value=[1.0]}\n%d : f32[1,4] = div %q, %n\n"
		"%l : f32[] = reduce_sum %d {axes=[0,1], keepdims=0}\n", ""},
	{"%r : f32[4] = reshape %q {shape=[4]}\n%l : f32[] = reduce_sum %r {axes=[0], keepdims=0}\n", ""},
	{"%s : f32[] = reduce_mean %q {axes=[0,1], keepdims=0}\n%l : f32[] = sqrt %s\n", ""},
	{"%s : f32[] = reduce_sum %q {axes=[0,1], keepdims=0}\n%n : f32[] = reduce_sum %x {axes=[0,1], keepdims=0}\n"
		"%l : f32[] = div %s, %n\n", "ratio"},
	{"%s : f32[4] = reduce_sum %q {axes=[0], keepdims=0}\n%t : f32[] = reduce_sum %s {axes=[0], keepdims=0}\n"
		"%m : f32[4] = reduce_mean %x {axes=[0], keepdims=0}\n%n : f32[] = reduce_sum %m {axes=[0], keepdims=0}\n"
		"%l : f32[] = div %t, %n\n", ""},
};

static void one_sample(void)
{
	for (int i = 0; i < COUNT_OF(one_rows); i++) {
		char *said = NULL;
		size_t n = 0;
		Diag d = {.out = open_memstream(&said, &n)};
		Arena *a = arena_new();
		const OneRow *r = &one_rows[i];
		Module *m = ir_parse("samples", arena_printf(a, "%s%s    output \"loss\" %%l\n  }\n}\n", ONE, r->body), &d);
		Options o = {.graph.loss = "output:loss"};
		CU_ASSERT_FATAL(m && pass_canon(m, &o, &d) && pass_loss(m, &o, &d));
		const Op *report = m->last[SEC_FORWARD];
		const char *over = attr_get_int(report->attrs, "adds", 0) ? "sum" : attr_get_int(report->attrs, "mean", 0)
			? "mean" : "ratio";
		fclose(d.out);
		bool warned = strstr(said, "of batches of one sample the graph does not show") != NULL;
		UNIT_CHECK(warned == !*r->over && !strcmp(over, *r->over ? r->over : "mean"), r->body);
		free(said);
		ir_module_free(m);
		arena_free(a);
	}
}

/* ---- what is said of a loss ---- */

static void note_of(const char *body, bool meets, bool places)
{
	char *said = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&said, &n)};
	Arena *a = arena_new();
	const char *tail = "%l : f32[] = reduce_sum %r {axes=[0,1], keepdims=0}\n    output \"loss\" %l\n  }\n}\n";
	char *text = arena_printf(a, "%s%s%s", HEAD, body, tail), *forward = strstr(text, "  forward");
	text = arena_printf(a, "%.*s  output \"loss\" : f32[]\n%s", (int)(forward - text), text, forward);
	Module *m = ir_parse("samples", text, &d);
	CU_ASSERT_FATAL(m && pass_loss(m, &(Options){.graph.loss = "output:loss"}, &d));
	fclose(d.out);
	UNIT_CHECK(meets == (strstr(said, "depends on which samples share a batch") != NULL), body);
	UNIT_CHECK(places == (strstr(said, "depends on the places of samples") != NULL), body);
	free(said);
	ir_module_free(m);
	arena_free(a);
}

/* Labels of a comparison have places; that samples meet says it all. */
static void notes(void)
{
	note_of("%r : f32[4,6] = mul %x, %z\n", false, false);
	note_of(PLACES "%r : f32[4,6] = mul %x, %p\n", false, true);
	note_of(PLACES COMPARE "%r : f32[4,4] = mul %c, %p\n", true, false);
}

/* A loss that takes one sample by its position is that sample's alone: neither a sum nor a mean. */
static void of_one(void)
{
	char *said = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&said, &n)};
	Module *m = ir_parse("samples", "module \"m\" level=MODEL batch=2 {\n  input \"x\" : f32[2,2] {batched=1}\n"
		"  param \"w\" : f32[2] {trainable=1}\n  output \"loss\" : f32[1,1]\n  forward {\n"
		"    %x : f32[2,2] = input \"x\"\n    %w : f32[2] = param \"w\"\n    %y : f32[2,2] = mul %x, %w\n"
		"    %l : f32[1,1] = slice %y {starts=[1,0], sizes=[1,1], steps=[1,1]} loc(\"/Slice\":\"Slice\"@\"\")\n"
		"    output \"loss\" %l\n  }\n}\n", &d);
	CU_ASSERT_FATAL(m && pass_loss(m, &(Options){.graph.loss = "output:loss"}, &d));
	fclose(d.out);
	CU_ASSERT(strstr(said, "\"loss\" is the loss of one sample of a batch of 2") != NULL);
	CU_ASSERT(strstr(said, "node \"/Slice\" (Slice)") != NULL);
	ir_module_free(m);
	free(said);
}

void suite_samples(void)
{
	CU_pSuite s = CU_add_suite("samples", NULL, NULL);
	CU_add_test(s, "sums, means, comparisons", kinds);
	CU_add_test(s, "batch norms in training", training);
	CU_add_test(s, "reshapes of one, two and four samples", reshapes);
	CU_add_test(s, "batches of one sample", one_sample);
	CU_add_test(s, "the loss of one sample", of_one);
	CU_add_test(s, "notes of places and comparisons", notes);
}
