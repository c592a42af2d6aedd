/* SPDX-License-Identifier: GPL-2.0 */
/*
 * rxe_fixture.h - what each test of RDMA starts from, and its steps
 *
 * FIXTURE(rxe): GPU 0, and two queue pairs of one rxe device that talk to each
 * other. One side of a transfer is in the memory under test, the other one in
 * pinned host memory. After each test the kernel's counters and its tracepoint
 * must tell that nobody asked for a peer address, and no page of VRAM may be in
 * use.
 */
#ifndef RXE_FIXTURE_H
#define RXE_FIXTURE_H

#include "p2p_harness.h"
#include "verbs/verbs.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#define PAGES		16UL

/* Seed of what the GPU writes */
#define GPU	400

FIXTURE(rxe)
{
	struct p2p_gpu gpu;
	struct p2ptest_gpu_info info; /* when the test began */
	struct p2p_stats stats;
	struct p2p_trace trace;

	struct verbs v;
	struct verbs_link link;

	/* The other side of transfers */
	unsigned char *data;
	size_t data_len;
	struct ibv_mr *data_mr;
};

#define RXE_SELF FIXTURE_DATA(rxe)

/* Memory under test */
struct rxe_buf {
	unsigned char *p;
	size_t len;
	size_t pages;
	struct ibv_mr *mr;
};

static inline void rxe_data_init(struct __test_metadata *_metadata,
				 RXE_SELF *self, size_t len)
{
	self->data_len = len;
	self->data = p2p_alloc(len);
	ASSERT_NE(NULL, self->data);
	self->data_mr =
		ibv_reg_mr(self->v.pd, self->data, len, IBV_ACCESS_LOCAL_WRITE);
	ASSERT_NE(NULL, self->data_mr);
}

FIXTURE_SETUP(rxe)
{
	const char *why;

	if (!p2p_start(_metadata))
		return;
	if (!p2p_gpu_count())
		SKIP(return, "no test GPU: no /dev/" P2P_GPU_DRIVER "<N>");
	why = verbs_open(&self->v);
	if (!why && !self->v.software)
		why = "the RDMA device is not rxe";
	if (why)
		SKIP(return, "%s: see rdma-link(8)", why);
	p2p_gpu_setup(_metadata, &self->gpu, &self->info);
	ASSERT_EQ(0, verbs_link(&self->v, &self->link));
	rxe_data_init(_metadata, self, PAGES * P2P_PAGE);

	/* A kernel without PCI_P2PDMA counts nothing, which is fine, too */
	if (p2p_stats_read(&self->stats))
		self->stats.pages[P2PTEST_REASON_NONE] = ~0ULL;
	else
		ASSERT_EQ(0, p2p_trace_start(&self->trace));
}

FIXTURE_TEARDOWN(rxe)
{
	__u64 traced[P2PTEST_REASON_MAX];
	int i;

	if (self->stats.pages[P2PTEST_REASON_NONE] != ~0ULL) {
		EXPECT_EQ(0, p2p_stats_since(&self->stats));
		EXPECT_EQ(0, p2p_trace_count(&self->trace, NULL, NULL,
					     -P2P_PAGE, traced));
		for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
			EXPECT_EQ(0U, self->stats.pages[i])
				TH_LOG("counted: %s", p2p_reason_names[i]);
			EXPECT_EQ(0U, traced[i])
				TH_LOG("traced: %s", p2p_reason_names[i]);
		}
		p2p_trace_stop(&self->trace);
	}
	EXPECT_EQ(0, verbs_unlink(&self->link));
	EXPECT_EQ(0, ibv_dereg_mr(self->data_mr));
	EXPECT_EQ(0, munmap(self->data, self->data_len));
	EXPECT_EQ(0, ibv_dealloc_pd(self->v.pd));
	EXPECT_EQ(0, ibv_close_device(self->v.ctx));
	p2p_gpu_close(&self->gpu);
	p2p_gpu_teardown(_metadata, &self->info);
}

/* Steps of tests */

/* Memory that holds pages 0.. of BEFORE, registered unless @access is 0 */
static inline void rxe_buf_init(struct __test_metadata *_metadata,
				RXE_SELF *self, struct rxe_buf *buf,
				size_t pages, int access)
{
	buf->pages = pages;
	buf->len = pages * P2P_PAGE;
	buf->p = p2p_alloc(buf->len);
	ASSERT_NE(NULL, buf->p);
	p2p_fill(buf->p, BEFORE, 0, buf->len);
	buf->mr = NULL;
	if (!access)
		return;
	buf->mr = ibv_reg_mr(self->v.pd, buf->p, buf->len, access);
	ASSERT_NE(NULL, buf->mr);
}

static inline void rxe_buf_free(struct __test_metadata *_metadata,
				struct rxe_buf *buf)
{
	EXPECT_EQ(0, ibv_dereg_mr(buf->mr));
	EXPECT_EQ(0, munmap(buf->p, buf->len));
}

static inline void rxe_buf_to_vram(struct __test_metadata *_metadata,
				   RXE_SELF *self, struct rxe_buf *buf)
{
	/* 0 if all of it is there already */
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf->p, buf->len));
	ASSERT_EQ((long)buf->pages,
		  p2p_gpu_resident(&self->gpu, buf->p, buf->len));
}

static inline __u64 rxe_moved_out(struct __test_metadata *_metadata,
				  RXE_SELF *self)
{
	return p2p_info(_metadata, &self->gpu).migrated_out;
}

/* All of @buf is in host memory, to which @pages of it moved since @before */
static inline void rxe_expect_home(struct __test_metadata *_metadata,
				   RXE_SELF *self, struct rxe_buf *buf,
				   size_t pages, __u64 before)
{
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf->p, buf->len));
	EXPECT_EQ(pages, rxe_moved_out(_metadata, self) - before);
}

/* One request between the first @len bytes of self->data and @theirs */
static inline int rxe_request(RXE_SELF *self, enum ibv_wr_opcode op, size_t len,
			      void *theirs, struct ibv_mr *mr)
{
	struct verbs_end mine = { .p = self->data, .mr = self->data_mr };

	return verbs_do(&self->link, op, mine,
			(struct verbs_end){ .p = theirs, .mr = mr }, len);
}

static inline void rxe_expect_success(struct __test_metadata *_metadata,
				      int status)
{
	EXPECT_EQ(IBV_WC_SUCCESS, status)
		TH_LOG("%s", verbs_str(status));
}

/* Write a part of a buffer with the same part of @seed */
static inline void rxe_buf_write(struct __test_metadata *_metadata,
				 RXE_SELF *self, struct rxe_buf *buf,
				 __u64 seed, size_t pos, size_t len)
{
	p2p_fill(self->data, seed, pos, len);
	rxe_expect_success(_metadata,
			   rxe_request(self, IBV_WR_RDMA_WRITE, len,
				       buf->p + pos, buf->mr));
}

/* Read a part of a buffer: it has to hold that part of @seed */
static inline void rxe_buf_read(struct __test_metadata *_metadata,
				RXE_SELF *self, struct rxe_buf *buf, __u64 seed,
				size_t pos, size_t len)
{
	memset(self->data, 0, len);
	rxe_expect_success(_metadata,
			   rxe_request(self, IBV_WR_RDMA_READ, len,
				       buf->p + pos, buf->mr));
	p2p_expect_pattern(_metadata, "RDMA read", self->data, seed, pos, len);
}

/*
 * As ibv_advise_mr(), which not every rdma-core offers for rxe. 0, or a negative
 * errno.
 */
static inline int rxe_advise(RXE_SELF *self, __u64 advice, __u32 flags,
			     const struct ibv_sge *sge)
{
	struct ib_uverbs_attr attrs[] = {
		{
			.attr_id = UVERBS_ATTR_ADVISE_MR_PD_HANDLE,
			.flags = UVERBS_ATTR_F_MANDATORY,
			.data = self->v.pd->handle,
		}, {
			.attr_id = UVERBS_ATTR_ADVISE_MR_ADVICE,
			.flags = UVERBS_ATTR_F_MANDATORY,
			.len = sizeof(advice),
			.data = advice,
		}, {
			.attr_id = UVERBS_ATTR_ADVISE_MR_FLAGS,
			.flags = UVERBS_ATTR_F_MANDATORY,
			.len = sizeof(__u32),
			.data = flags,
		}, {
			.attr_id = UVERBS_ATTR_ADVISE_MR_SGE_LIST,
			.flags = UVERBS_ATTR_F_MANDATORY,
			.len = sizeof(*sge),
			.data = (uintptr_t)sge,
		},
	};
	size_t len = sizeof(struct ib_uverbs_ioctl_hdr) + sizeof(attrs);
	struct ib_uverbs_ioctl_hdr *cmd = calloc(1, len);
	int ret;

	if (!cmd)
		return -ENOMEM;
	cmd->length = len;
	cmd->object_id = UVERBS_OBJECT_MR;
	cmd->method_id = UVERBS_METHOD_ADVISE_MR;
	cmd->num_attrs = ARRAY_SIZE(attrs);
	cmd->driver_id = RDMA_DRIVER_RXE;
	memcpy(cmd->attrs, attrs, sizeof(attrs));
	ret = ioctl(self->v.ctx->cmd_fd, RDMA_VERBS_IOCTL, cmd) ? -errno : 0;
	free(cmd);
	return ret;
}

#endif /* RXE_FIXTURE_H */
