/* report/parts.c: the programs of the step that a page shows. */
#include <inttypes.h>

#include "report/private.h"

StepParts report_parts(const Sizes *program, const Options *o)
{
	const Variants *v = &program->of[program->n - 1];
	int64_t given = predict_micro_batches(o, v->of[VARIANT_ONLY]->batch);
	StepParts p = {.micro_batches = !v->of[VARIANT_FIRST] ? 1 : o->what.global_batch && given ? given : 3};
	int first = 0;
	for (int k = 0; k < VARIANT_COUNT; k++) {
		int64_t times = predict_runs(p.micro_batches, (Variant)k);
		if (!times)
			continue;
		StepPart x = {.of = (Variant)k, .m = v->of[k], .times = times, .first = first};
		for (int section = SEC_FORWARD; section <= SEC_UPDATE; section++)
			IR_FOR_OPS(x.m, section, op)
				x.n_ops++;
		first += x.n_ops;
		p.at[p.n++] = x;
	}
	return p;
}

void report_put_parts(FILE *f, const StepParts *p)
{
	fputs("\"parts\": [", f);
	for (int i = 0; i < p->n; i++)
		fprintf(f, "%s[\"%s\",%" PRId64 ",%d,%d]", i ? ", " : "", variant_text[p->at[i].of], p->at[i].times,
			p->at[i].first, p->at[i].n_ops);
	fputs("],\n", f);
}
