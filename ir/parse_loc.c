/* ir/parse_loc.c: reads where ops came from: loc(7 grad) with 7 = "node":"MatMul"@"h.0.attn" in the section of
 * locations, behind the ops, or the names in place of the number.
 *
 * A number is kept, because it is printed again.  Names without one get the numbers behind the greatest in the text. */
#include "ir/parse.h"

/* The names of a node, and the locations that have them, with whatever role. */
typedef struct Names {
	const char *node, *onnx, *scope; /* node: NULL until they are read */
	int number;                      /* 0: the text gives none */
	TextPlace used;                  /* where the first op names them; line 0: none does */
	VEC(Loc *) locs;
} Names;

struct Locations {
	Map *by_number, *by_text; /* number, or names -> Names */
	VEC(Names *) all;
	int greatest;
};

Locations *locations_new(Arena *a)
{
	Locations *t = NEW(a, Locations);
	t->by_number = map_new(a);
	t->by_text = map_new(a);
	return t;
}

/* What the key stands for in the map; new at its first use. */
static Names *names_of(Parser *p, Map *map, const char *key)
{
	Names *n = map_get(map, key);
	if (n)
		return n;
	n = NEW(p->lex.arena, Names);
	map_put(map, key, n);
	vec_push(p->lex.arena, &p->locations->all, n);
	return n;
}

static Names *by_number(Parser *p)
{
	Locations *t = p->locations;
	const char *text = p->lex.tok.text;
	int64_t number = lex_integer(&p->lex);
	if (number < 1 || number > INT32_MAX / 2)
		lex_refuse(&p->lex, "\"%s\" is no number of a location; expected one from 1 to %d", text, INT32_MAX / 2);
	if (p->lex.failed)
		return NULL;
	Names *n = names_of(p, t->by_number, arena_printf(p->lex.arena, "%d", (int)number));
	n->number = (int)number;
	t->greatest = MAX(t->greatest, n->number);
	return n;
}

/* Reads "node":"MatMul"@"h.0.attn". */
static void read_names(Parser *p, Names *n)
{
	const char *onnx = "", *scope = "";
	const char *node = lex_take(&p->lex, TOK_STRING, "a node name or the number of a location");
	if (lex_accept(&p->lex, ':'))
		onnx = lex_take(&p->lex, TOK_STRING, "an ONNX op type");
	if (lex_accept(&p->lex, '@'))
		scope = lex_take(&p->lex, TOK_STRING, "a scope");
	n->node = ir_intern(p->m, node);
	n->onnx = ir_intern(p->m, onnx);
	n->scope = ir_intern(p->m, scope);
}

static Names *by_names(Parser *p)
{
	Names names = {0};
	read_names(p, &names);
	const char *key = arena_printf(p->lex.arena, "%p %p %p", (const void *)names.node,
		(const void *)names.onnx, (const void *)names.scope); /* strings of a module are interned */
	Names *n = names_of(p, p->locations->by_text, key);
	n->node = names.node;
	n->onnx = names.onnx;
	n->scope = names.scope;
	return n;
}

const Loc *parse_loc(Parser *p)
{
	if (!lex_is_word(&p->lex, "loc"))
		return loc_new(p->m, "", "", "", "");
	lex_next(&p->lex);
	lex_expect(&p->lex, '(');
	TextPlace at = p->lex.tok_at;
	Names *n = p->lex.tok.kind == TOK_NUMBER ? by_number(p) : by_names(p);
	const char *role = p->lex.tok.kind == TOK_WORD ? lex_take(&p->lex, TOK_WORD, "a role") : "";
	lex_expect(&p->lex, ')');
	Loc *l = NEW(p->m->arena, Loc);
	*l = (Loc){.node = "", .onnx = "", .scope = "", .role = ir_intern(p->m, role)};
	if (n && !n->locs.n)
		n->used = at;
	if (n)
		vec_push(p->lex.arena, &n->locs, l);
	return l;
}

void parse_locations(Parser *p)
{
	lex_next(&p->lex);
	lex_expect(&p->lex, '{');
	while (!p->lex.failed && !lex_is_punct(&p->lex, '}')) {
		TextPlace at = p->lex.tok_at;
		Names *n = by_number(p);
		if (n && n->node)
			lex_refuse_at(&p->lex, &at, "location %d is given twice", n->number);
		lex_expect(&p->lex, '=');
		if (!p->lex.failed)
			read_names(p, n);
	}
	lex_expect(&p->lex, '}');
}

void resolve_locs(Parser *p)
{
	Locations *t = p->locations;
	for (int i = 0; !p->lex.failed && i < t->all.n; i++) {
		Names *n = t->all.at[i];
		if (!n->node) {
			lex_refuse_at(&p->lex, &n->used, "location %d is not in the module's section of locations; expected a line "
				"such as %d = \"node\":\"MatMul\" there", n->number, n->number);
			return;
		}
		bool none = !*n->node && !*n->onnx && !*n->scope;
		int number = none ? 0 : n->number ? n->number : ++t->greatest;
		for (int k = 0; k < n->locs.n; k++) {
			Loc *l = n->locs.at[k];
			*l = (Loc){n->node, n->onnx, n->scope, l->role, number};
		}
	}
	p->m->n_locs = t->greatest;
}
