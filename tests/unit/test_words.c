/* tests/unit/test_words.c: what users write: sizes, misspelt words, other systems' words, regular expressions. */
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "base/pattern.h"
#include "tests/unit/unit.h"

enum { REFUSED = -1 };
static const int64_t KI = 1024, MI = 1 << 20, GI = 1 << 30;

static int64_t size_of(const char *text, bool bytes)
{
	int64_t n = 77;
	return str_to_size(text, bytes, &n) ? n : REFUSED;
}

static void test_sizes(void)
{
	const struct { const char *text; int64_t count, bytes; } cases[] = {
		{"0", 0, 0}, {"1", 1, 1}, {"4096", 4096, 4096}, {"007", 7, 7},
		{"60K", 60000, 60 * KI}, {"60k", 60000, 60 * KI}, {"64M", 64000000, 64 * MI}, {"2G", 2000000000, 2 * GI},
		{"3T", 3000000000000, 3072 * GI}, {"1.5G", 1500000000, 3 * GI / 2}, {"0.5K", 500, 512},
		{"1e8", 100000000, 100000000}, {"1e+8", 100000000, 100000000}, {"1E3", 1000, 1000}, {"1.25e2", 125, 125},
		{"1e3K", 1000000, 1000 * KI}, {"2.50", REFUSED, REFUSED}, {"2.0", 2, 2},
		{"200MiB", REFUSED, 200 * MI}, {"200MB", REFUSED, 200000000}, {"5B", REFUSED, 5}, {"1KiB", REFUSED, KI},
		{"9223372036854775807", INT64_MAX, INT64_MAX}, {"9223372036854775808", REFUSED, REFUSED},
		{"99999999999999999999", REFUSED, REFUSED}, {"9e18", 9000000000000000000, 9000000000000000000},
		{"1e19", REFUSED, REFUSED}, {"1e99", REFUSED, REFUSED}, {"9000000T", 9000000000000000000, REFUSED},
		{"0e30", 0, 0}, {"0.1K", 100, REFUSED}, {"0.001K", 1, REFUSED}, {"0.0001K", REFUSED, REFUSED},
		{"", REFUSED, REFUSED}, {"-1", REFUSED, REFUSED}, {"+1", REFUSED, REFUSED}, {" 1", REFUSED, REFUSED},
		{"1 ", REFUSED, REFUSED}, {"1 K", REFUSED, REFUSED}, {"0x10", REFUSED, REFUSED}, {"1X", REFUSED, REFUSED},
		{"1KK", REFUSED, REFUSED}, {"K", REFUSED, REFUSED}, {"1.", REFUSED, REFUSED}, {".5K", REFUSED, REFUSED},
		{"1e", REFUSED, REFUSED}, {"1e-3", REFUSED, REFUSED}, {"1.5", REFUSED, REFUSED}, {"inf", REFUSED, REFUSED},
		{"nan", REFUSED, REFUSED}, {"1,000", REFUSED, REFUSED}, {"1Mi", REFUSED, REFUSED}, {"1iB", REFUSED, REFUSED},
	};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		UNIT_CHECK(size_of(cases[i].text, false) == cases[i].count, cases[i].text);
		UNIT_CHECK(size_of(cases[i].text, true) == cases[i].bytes, cases[i].text);
	}
	int64_t n = 77;
	CU_ASSERT(!str_to_count("0", false, &n) && n == 77);
	CU_ASSERT(str_to_count("1K", false, &n) && n == 1000);
}

static void test_distance(void)
{
	const struct { const char *x, *y; int n; } cases[] = {
		{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"abc", "abc", 0}, {"ABC", "abc", 0}, {"a-b", "a_b", 0},
		{"abc", "acb", 1}, {"abc", "ab", 1}, {"abc", "xabc", 1}, {"abc", "abx", 1}, {"kitten", "sitting", 3},
		{"ca", "abc", 3},
	};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		UNIT_CHECK(near_distance(cases[i].x, cases[i].y) == cases[i].n, cases[i].x);
		UNIT_CHECK(near_distance(cases[i].y, cases[i].x) == cases[i].n, cases[i].y);
	}
	char longer[200];
	memset(longer, 'a', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	CU_ASSERT(near_distance(longer, "a") == 199);
}

static void test_near(void)
{
	static const char strategies[] = "full_shard|shard_grad_op|hybrid_shard|no_shard|oss|sharded_ddp";
	const struct { const char *option, *given, *choices, *hint; } cases[] = {
		{"--strategy", "FULL_SHARD", strategies, "; did you mean full_shard?"},
		{"--strategy", "full-shard", strategies, "; did you mean full_shard?"},
		{"--strategy", "full_shrad", strategies, "; did you mean full_shard?"},
		{"--strategy", "SHARD_GRAD_OP", strategies, "; did you mean shard_grad_op?"},
		{"--strategy", "hybrid", strategies, "; did you mean hybrid_shard?"},
		{"--strategy", "zero3", strategies, "; zero3 of DeepSpeed is full_shard here"},
		{"--strategy", "ZeRO-3", strategies, "; ZeRO-3 of DeepSpeed is full_shard here"},
		{"--strategy", "zero2", strategies, "; zero2 of DeepSpeed is shard_grad_op here"},
		{"--strategy", "zero1", strategies, "; zero1 of DeepSpeed is oss here"},
		{"--strategy", "ddp", strategies, "; ddp of PyTorch is no_shard here"},
		{"--strategy", "spiral", strategies, ""},
		{"--strategy", "", strategies, ""},
		{"--param-dtype", "fp16", "f32|bf16|f16", "; fp16 of DeepSpeed is f16 here"},
		{"--reduce-dtype", "torch.bfloat16", "f32|bf16|f16", "; torch.bfloat16 of PyTorch is bf16 here"},
		{"--wrap", "transformer", "block|each", "; transformer of PyTorch is block here"},
		{"--wrap", "size_based_auto_wrap_policy", "block|each",
			"; size_based_auto_wrap_policy of PyTorch is size:N here"},
		{"--backward-prefetch", "BACKWARD_PRE", "none|pre|post", "; BACKWARD_PRE of PyTorch is pre here"},
		{"shardc", "--stratgy", "--strategy|--wrap", "; did you mean --strategy?"},
		{"shardc", "--param_dtype", "--param-dtype|--wrap", "; did you mean --param-dtype?"},
		{"shardc", "--auto-wrap-policy", "--strategy|--wrap", "; --auto-wrap-policy of PyTorch is --wrap here"},
		{"train", "--strategy", "--steps", "; it is compiled in: shardc MODEL.onnx --strategy"},
		{"shardc", "--zzzzzz", "--strategy|--wrap", ""},
	};
	Arena *a = arena_new();
	for (int i = 0; i < COUNT_OF(cases); i++)
		UNIT_CHECK(!strcmp(near_choice(a, cases[i].option, cases[i].given, cases[i].choices), cases[i].hint),
			cases[i].given);
	const char *names[] = {"h.0.attn", "h.1.attn", "lm_head"};
	CU_ASSERT_STRING_EQUAL(near_pattern(a, "^lm_hed$", names, 3), "; did you mean lm_head?");
	CU_ASSERT_STRING_EQUAL(near_pattern(a, "^h\\.0\\.atn", names, 3), "; did you mean h.0.attn?");
	CU_ASSERT_STRING_EQUAL(near_pattern(a, "^.*$", names, 3), "");
	arena_free(a);
}

/* An expression and what it says of a name; or the end of the message that refuses it. */
static void check_pattern(const char *pattern, const char *name, bool matches, const char *refused)
{
	char *log = NULL;
	size_t n = 0;
	regex_t re;
	FILE *f = open_memstream(&log, &n);
	Diag d = {.out = f};
	bool ok = pattern_compile(&re, pattern, "--x", &d);
	fclose(f);
	UNIT_CHECK(ok == !refused && ok == (d.errors == 0), pattern);
	if (ok) {
		UNIT_CHECK(pattern_matches(&re, name) == matches, pattern);
		regfree(&re);
	} else if (refused) {
		UNIT_CHECK(strstr(log, refused) != NULL, log);
	}
	free(log);
}

static void test_patterns(void)
{
	const struct { const char *pattern, *name; bool matches; const char *refused; } cases[] = {
		{"^h\\.[0-9]+$", "h.12", true, NULL}, {"^h\\.[0-9]+$", "h.x", false, NULL}, {"(a|b)c", "bc", true, NULL},
		{"\\bfc\\b", "x.fc.weight", true, NULL}, {"\\bfc\\b", "xfcy", false, NULL}, {"^\\w+$", "a_1", true, NULL},
		{"^\\w+$", "a.1", false, NULL}, {"[[:digit:]]", "7", true, NULL}, {"[]x]", "]", true, NULL},
		{"[^]x]", "x", false, NULL}, {"[^\\.]", "a", true, NULL}, {"\\\\d", "\\d", true, NULL},
		{"h\\.\\d+", "", false, "\\d is Perl's, expressions here are POSIX extended ones, as egrep's: write [0-9]"},
		{"[\\d]", "", false, "write 0-9"}, {"[\\w.]", "", false, "write [:alnum:]_"}, {"(?:a|b)", "", false, "write ("},
		{"(?!a)b", "", false, "which have nothing like it"}, {"\\x41", "", false, "\\x is Perl's"},
		{"[", "", false, "is not an extended regular expression"}, {"(", "", false, "is not an extended"},
		{"a{500}", "a", false, NULL}, {"(a[+]\\+{2,3})+", "a+++", true, NULL}, {"a){2}", "a))", true, NULL},
		{"h\\.[0-9]++++++++++++++++++++++++++++++++++++++++", "", false, "its repeats (+ and {n,m})"},
		{"(a{1,40}){40,}", "", false, "come to 1.68e+03 parts, of at most 1056"},
		{"a)++++++++++++", "", false, "come to 4.1e+03"},
		{"((((a+)+)+b)[+]{9}){100}", "", false, "written out"}, {"\\+{99999}", "", false, "written out"},
		{"a\\", "", false, "is not an extended"}, {"[[:digit:]\\d]", "", false, "write 0-9"},
	};
	for (int i = 0; i < COUNT_OF(cases); i++)
		check_pattern(cases[i].pattern, cases[i].name, cases[i].matches, cases[i].refused);
}

/* The expression of some names matches these and no others. */
static void test_names_as_patterns(void)
{
	static const char *const names[] = {"h.1", "h.12", "h.2", "a(b)[c]{d}*+?|^$\\", "h.1.", "hx1", ""};
	static const struct { int from, n; const char *pattern; } cases[] = {
		{0, 1, "^h\\.1$"}, {0, 3, "^h\\.(1|12|2)$"}, {2, 2, "^(h\\.2|a\\(b\\)\\[c\\]\\{d\\}\\*\\+\\?\\|\\^\\$\\\\)$"},
	};
	Arena *a = arena_new();
	for (int i = 0; i < COUNT_OF(cases); i++) {
		const char *pattern = pattern_of_names(names + cases[i].from, cases[i].n, a);
		CU_ASSERT_STRING_EQUAL(pattern, cases[i].pattern);
		for (int k = 0; k < COUNT_OF(names); k++)
			check_pattern(pattern, names[k], k >= cases[i].from && k < cases[i].from + cases[i].n, NULL);
	}
	arena_free(a);
}

void suite_words(void)
{
	CU_pSuite s = CU_add_suite("words", NULL, NULL);
	CU_add_test(s, "sizes: one grammar, nothing rounded", test_sizes);
	CU_add_test(s, "typing errors are counted", test_distance);
	CU_add_test(s, "a word that is unknown has a near one", test_near);
	CU_add_test(s, "regular expressions are POSIX's, Perl's are refused", test_patterns);
	CU_add_test(s, "names as an expression match themselves alone", test_names_as_patterns);
}
