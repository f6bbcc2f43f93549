/* kernels/cpu/prim.c: the life of a primitive: choose an implementation, create, run, free.
 *
 * Everything is allocated when a primitive is created; a run only sets pointers and executes.  The engine and the
 * stream are made with the first primitive, which is after the ranks were forked. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/prim.h"

static dnnl_engine_t engine;
static dnnl_stream_t stream;

dnnl_engine_t prim_engine(void)
{
	if (!engine)
		prim_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "create its engine");
	return engine;
}

dnnl_stream_t prim_stream(void)
{
	if (!stream)
		prim_check(dnnl_stream_create(&stream, prim_engine(), dnnl_stream_default_flags), "create a stream");
	return stream;
}

void prim_check(dnnl_status_t status, const char *what)
{
	if (status != dnnl_success)
		k_fail("oneDNN could not %s (status %d)", what, (int)status);
}

dnnl_data_type_t prim_type(KDType t)
{
	return t == K_BF16 ? dnnl_bf16 : t == K_F16 ? dnnl_f16 : dnnl_f32;
}

KPrim *prim_new(const char *impl)
{
	KPrim *p = calloc(1, sizeof *p);
	if (!p)
		k_fail("out of memory for a primitive");
	snprintf(p->impl, sizeof p->impl, "%s", impl);
	return p;
}

void k_prim_free(KPrim *p)
{
	if (!p)
		return;
	k_prim_free(p->inner);
	for (int i = 0; i < PRIM_MAX_PRODUCTS; i++)
		k_prim_free(p->product[i]);
	for (int64_t i = 0; i < p->n_slots; i++)
		k_prim_free(p->slot[i]);
	free(p->slot);
	for (int i = 0; i < p->n_args; i++)
		dnnl_memory_destroy(p->arg[i].memory);
	for (int i = 0; p->reorder && i < 2; i++)
		if (p->reorder_arg[i].memory)
			dnnl_memory_destroy(p->reorder_arg[i].memory);
	dnnl_primitive_destroy(p->prim);
	dnnl_primitive_destroy(p->reorder);
	free(p);
}

const char *k_prim_impl(const KPrim *p) { return p->impl; }
int64_t k_prim_work(const KPrim *p) { return p->work; }

int prim_add_arg(KPrim *p, int id, const dnnl_memory_desc_t *md)
{
	dnnl_memory_t m;
	prim_check(dnnl_memory_create(&m, md, prim_engine(), DNNL_MEMORY_NONE), "describe a tensor");
	p->arg[p->n_args] = (dnnl_exec_arg_t){id, m};
	return p->n_args++;
}

void prim_set(KPrim *p, int i, const void *at)
{
	dnnl_memory_set_data_handle(p->arg[i].memory, (void *)(uintptr_t)at);
}

void prim_execute(KPrim *p)
{
	prim_check(dnnl_primitive_execute(p->prim, prim_stream(), p->n_args, p->arg), "execute a primitive");
}

int64_t prim_scratch_bytes(dnnl_primitive_desc_t pd)
{
	return (int64_t)dnnl_memory_desc_get_size(prim_md(pd, dnnl_query_scratchpad_md));
}

const dnnl_memory_desc_t *prim_md(dnnl_primitive_desc_t pd, dnnl_query_t what)
{
	return dnnl_primitive_desc_query_md(pd, what, 0);
}

static void set_add(dnnl_primitive_attr_t attr)
{
	dnnl_post_ops_t after;
	prim_check(dnnl_post_ops_create(&after), "create attributes");
	prim_check(dnnl_post_ops_append_sum(after, 1), "set attributes");
	prim_check(dnnl_primitive_attr_set_post_ops(attr, after), "set attributes");
	dnnl_post_ops_destroy(after);
}

dnnl_primitive_desc_t prim_choose(const_dnnl_op_desc_t op_desc, dnnl_primitive_desc_t hint, bool add,
	PrimAccept *accept, const void *context)
{
	dnnl_primitive_attr_t attr;
	dnnl_primitive_desc_iterator_t it;
	dnnl_primitive_desc_t found = NULL;
	prim_check(dnnl_primitive_attr_create(&attr), "create attributes");
	prim_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "set attributes");
	if (add)
		set_add(attr);
	if (dnnl_primitive_desc_iterator_create(&it, op_desc, attr, prim_engine(), hint) == dnnl_success) {
		do {
			const char *impl = "";
			dnnl_primitive_desc_t pd = dnnl_primitive_desc_iterator_fetch(it);
			dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl);
			if (strncmp(impl, "ref", 3) != 0 && (!accept || accept(impl, pd, context)))
				found = pd;
			else
				dnnl_primitive_desc_destroy(pd);
		} while (!found && dnnl_primitive_desc_iterator_next(it) == dnnl_success);
		dnnl_primitive_desc_iterator_destroy(it);
	}
	dnnl_primitive_attr_destroy(attr);
	return found;
}

void prim_take(KPrim *p, dnnl_primitive_desc_t pd)
{
	const char *impl = "";
	dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl);
	snprintf(p->impl, sizeof p->impl, "%s", impl);
	prim_check(dnnl_primitive_create(&p->prim, pd), "create a primitive");
	prim_add_arg(p, DNNL_ARG_SCRATCHPAD, prim_md(pd, dnnl_query_scratchpad_md));
	p->work = prim_scratch_bytes(pd);
}
