/* tests/unit/loaded.h: look-ups in a loaded model, for tests; a missing item fails the test that asks for it. */
#ifndef SHARDC_TEST_LOADED_H
#define SHARDC_TEST_LOADED_H

#include "tests/unit/onnx_model.h"

/* Loads and verifies; frees m. */
Loaded good(OnnxText *m, const FrontendOptions *o);
/* This was reported. */
void expect(const Loaded *l, const char *text);
/* The tensor of this name; where there is none the test ends. */
const Symbol *symbol(const Loaded *l, const char *name);
/* The same; NULL where it is of another kind. */
const Symbol *symbol_of(const Loaded *l, const char *name, SymbolKind kind);
/* Loads with --trainable=list.txt, a file of this text; frees m. */
Loaded load_listed(OnnxText *m, const char *text);
int params_of(const Loaded *l); /* how many parameters it has */

#endif
