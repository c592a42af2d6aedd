// SPDX-License-Identifier: GPL-2.0
/*
 * Test of RDMA on-demand paging over device private memory with a real verbs device:
 * each allocation fails once
 *
 * That is, each allocation of the process that asks: to register, and for the page
 * faults of a prefetch that the process waits for. Page faults of the device itself
 * are handled by a thread of the kernel, and run the same code.
 */
#include "verbs_fixture.h"
#include "../p2p_nomem.h"

FIXTURE(verbs_nomem)
{
	VERBS_SELF verbs;
	struct nomem nomem;
};

#define SELF FIXTURE_DATA(verbs_nomem)

FIXTURE_SETUP(verbs_nomem)
{
	if (nomem_open(_metadata, &self->nomem))
		verbs_setup(_metadata, &self->verbs, NULL);
}

FIXTURE_TEARDOWN_PARENT(verbs_nomem)
{
	verbs_teardown(_metadata, &self->verbs, NULL);
}

static int reg(const VERBS_SELF *verbs, struct verbs_buf *buf, bool implicit,
	       int access)
{
	if (implicit)
		buf->mr = ibv_reg_mr(verbs->v.pd, NULL, SIZE_MAX, access);
	else
		buf->mr = ibv_reg_mr(verbs->v.pd, buf->p, buf->len, access);
	return buf->mr ? 0 : -errno;
}

/* The device reads and writes it, and nothing else has changed */
static void works(struct __test_metadata *_metadata, VERBS_SELF *verbs,
		  struct verbs_buf *buf)
{
	struct verbs_buf data;

	verbs_buf_init(_metadata, verbs, &data, buf->pages, OTHER, VERBS_REMOTE);
	verbs_copy(_metadata, verbs, IBV_WR_RDMA_READ, buf, 0, &data, 0, buf->len);
	verbs_buf_check(_metadata, verbs, &data);
	verbs_buf_fill(&data, AFTER);
	verbs_copy(_metadata, verbs, IBV_WR_RDMA_WRITE, &data, 0, buf, 0, buf->len);
	verbs_buf_check(_metadata, verbs, buf);
	verbs_buf_free(_metadata, &data);
}

TEST_F_TIMEOUT(verbs_nomem, regions, TIMEOUT_S)
{
	static const struct {
		const char *name;
		bool implicit;
		int access;
	} kinds[] = {
		{ "pinned", false, VERBS_REMOTE },
		{ "on demand", false, VERBS_ODP },
		{ "implicit", true, VERBS_ODP },
	};
	struct nomem *nomem = &self->nomem;
	VERBS_SELF *verbs = &self->verbs;
	struct verbs_buf buf;
	size_t i;
	int ret;

	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		if (kinds[i].implicit && !verbs->v.implicit)
			continue;
		for_each_allocation(nomem, kinds[i].name) {
			verbs_buf_init(_metadata, verbs, &buf, PAGES, BEFORE, 0);
			verbs_buf_to_vram(_metadata, verbs, &buf);
			NOMEM_CALL(nomem, ret, reg(verbs, &buf, kinds[i].implicit,
						   kinds[i].access));
			if (ret)
				ASSERT_EQ(0, reg(verbs, &buf, kinds[i].implicit,
						 kinds[i].access));
			works(_metadata, verbs, &buf);
			verbs_buf_free(_metadata, &buf);
		}
	}
	EXPECT_LT(20U, nomem->failed);
}

static int prefetch(const VERBS_SELF *verbs, const struct verbs_buf *buf)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)buf->p,
		.length = buf->len,
		.lkey = buf->mr->lkey,
	};

	return -ibv_advise_mr(verbs->v.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
			      IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
}

static void fault_step(struct __test_metadata *_metadata, SELF *self,
		       const char *name, size_t pages, bool vram, bool implicit)
{
	struct nomem *nomem = &self->nomem;
	VERBS_SELF *verbs = &self->verbs;
	struct verbs_buf buf;
	int ret;

	if (implicit && !verbs->v.implicit)
		return;
	for_each_allocation(nomem, name) {
		verbs_buf_init(_metadata, verbs, &buf, pages, BEFORE, 0);
		ASSERT_EQ(0, reg(verbs, &buf, implicit, VERBS_ODP));
		if (vram)
			verbs_buf_to_vram(_metadata, verbs, &buf);
		NOMEM_CALL_OR(nomem, ret, vram ? -ENOMEM : NOMEM_NOT_MAPPED,
			      prefetch(verbs, &buf));
		works(_metadata, verbs, &buf);
		verbs_buf_free(_metadata, &buf);
	}
}

TEST_F_TIMEOUT(verbs_nomem, faults, TIMEOUT_S)
{
	const size_t huge = P2P_HUGE / P2P_PAGE;

	fault_step(_metadata, self, "host memory", PAGES, false, false);
	fault_step(_metadata, self, "VRAM", PAGES, true, false);
	fault_step(_metadata, self, "VRAM, implicit", PAGES, true, true);
	fault_step(_metadata, self, "huge, VRAM", huge, true, false);
	EXPECT_LT(10U, self->nomem.failed);
}

TEST_HARNESS_MAIN
