/* tests/unit/loaded.c: look-ups in a loaded model, for tests. */
#include "tests/unit/loaded.h"

#include <string.h>
#include <unistd.h>

#include "tests/unit/unit.h"

Loaded good(OnnxText *m, const FrontendOptions *o)
{
	Loaded l = load_model(m, o);
	Diag d = {.out = stderr};
	if (!l.m)
		fprintf(stderr, "\n%s\n", l.log);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	CU_ASSERT(ir_verify(l.m, NULL, &d));
	return l;
}

void expect(const Loaded *l, const char *text)
{
	bool said = strstr(l->log, text) != NULL;
	UNIT_CHECK(said, text);
	if (!said)
		fprintf(stderr, "\nexpected \"%s\" in:\n%s\n", text, l->log);
}

const Symbol *symbol(const Loaded *l, const char *name)
{
	const Symbol *s = l->m ? ir_find_symbol(l->m, name) : NULL;
	UNIT_CHECK(s != NULL, name);
	if (!s)
		UNIT_END("the model does not have it");
	return s;
}

const Symbol *symbol_of(const Loaded *l, const char *name, SymbolKind kind)
{
	const Symbol *s = symbol(l, name);
	bool is = s->kind == kind;
	UNIT_CHECK(is, name);
	return is ? s : NULL;
}

Loaded load_listed(OnnxText *m, const char *text)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/list.txt", model_folder());
	FILE *f = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fputs(text, f);
	fclose(f);
	Loaded l = load_model(m, &(FrontendOptions){.graph = {.trainable = path, .strict_params = true}});
	unlink(path);
	return l;
}

int params_of(const Loaded *l)
{
	int n = 0;
	for (int i = 0; l->m && i < l->m->n_symbols; i++)
		n += l->m->symbols[i]->kind == SYM_PARAM;
	return n;
}
