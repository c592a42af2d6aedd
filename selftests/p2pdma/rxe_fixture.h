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

#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#define PORT		1
#define PAGES		16UL

/* Seed of what the GPU writes */
#define GPU	400

/* Regions with atomic access never have pages of a peer, whatever the device */
#define REMOTE	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | \
		 IBV_ACCESS_REMOTE_WRITE)
#define ODP	(REMOTE | IBV_ACCESS_ON_DEMAND)

FIXTURE(rxe)
{
	struct p2p_gpu gpu;
	struct p2ptest_gpu_info info; /* when the test began */
	struct p2p_stats stats;
	struct p2p_trace trace;

	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2]; /* who asks, and who answers */

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

/* A device of rxe is one that tells on which network device it is */
static inline bool rxe_is_rxe(struct ibv_device *dev)
{
	char path[IBV_SYSFS_PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/parent", dev->ibdev_path);
	return !access(path, F_OK);
}

static inline struct ibv_context *rxe_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;
	int i;

	for (i = 0; list && list[i] && !ctx; i++) {
		if (rxe_is_rxe(list[i]))
			ctx = ibv_open_device(list[i]);
	}
	if (list)
		ibv_free_device_list(list);
	return ctx;
}

static inline bool rxe_has_odp(struct ibv_context *ctx)
{
	const uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
			    IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
			    IBV_ODP_SUPPORT_ATOMIC;
	struct ibv_device_attr_ex attr;

	return !ibv_query_device_ex(ctx, NULL, &attr) &&
	       (attr.odp_caps.general_caps & IBV_ODP_SUPPORT) &&
	       (attr.odp_caps.per_transport_caps.rc_odp_caps & rc) == rc;
}

/* The address to talk to: that of an IPv4 address, or else the first one */
static inline int rxe_own_gid(struct ibv_context *ctx, int entries,
			      union ibv_gid *gid)
{
	static const unsigned char v4[12] = { [10] = 0xff, [11] = 0xff };
	int i;

	for (i = 0; i < entries; i++) {
		if (!ibv_query_gid(ctx, PORT, i, gid) &&
		    !memcmp(gid->raw, v4, sizeof(v4)))
			return i;
	}
	return ibv_query_gid(ctx, PORT, 0, gid) ? -1 : 0;
}

static inline void rxe_connect(struct __test_metadata *_metadata,
			       RXE_SELF *self, struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = REMOTE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_port_attr port;
	union ibv_gid gid;
	int index;

	ASSERT_EQ(0, ibv_query_port(self->ctx, PORT, &port));
	ASSERT_EQ(IBV_PORT_ACTIVE, (int)port.state)
		TH_LOG("the network device below rxe is down");
	index = rxe_own_gid(self->ctx, port.gid_tbl_len, &gid);
	ASSERT_LE(0, index);

	ASSERT_EQ(0,
		  ibv_modify_qp(qp, &attr,
				IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
					IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = to,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = PORT,
			.grh = {
				.dgid = gid,
				.sgid_index = index,
				.hop_limit = 64,
			},
		},
	};
	ASSERT_EQ(0, ibv_modify_qp(qp, &attr,
				   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					   IBV_QP_MAX_DEST_RD_ATOMIC |
					   IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 18, /* about a second */
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	ASSERT_EQ(0, ibv_modify_qp(qp, &attr,
				   IBV_QP_STATE | IBV_QP_TIMEOUT |
					   IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					   IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void rxe_data_init(struct __test_metadata *_metadata,
				 RXE_SELF *self, size_t len)
{
	self->data_len = len;
	self->data = p2p_alloc(len);
	ASSERT_NE(NULL, self->data);
	self->data_mr =
		ibv_reg_mr(self->pd, self->data, len, IBV_ACCESS_LOCAL_WRITE);
	ASSERT_NE(NULL, self->data_mr);
}

FIXTURE_SETUP(rxe)
{
	struct ibv_qp_init_attr init = {
		.cap = {
			.max_send_wr = 4,
			.max_recv_wr = 4,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	int i;

	if (!p2p_gpu_count())
		SKIP(return, "no test GPU: no /dev/" P2P_GPU_DRIVER "<N>");
	self->ctx = rxe_open();
	if (!self->ctx)
		SKIP(return, "no rxe device: see rdma-link(8)");
	if (!rxe_has_odp(self->ctx))
		SKIP(return, "rxe was built without on-demand paging");

	ASSERT_EQ(0, p2p_gpu_open(&self->gpu, 0));
	ASSERT_EQ(0, p2p_gpu_info(&self->gpu, &self->info));
	ASSERT_EQ(0U, self->info.pages_used)
		TH_LOG("something else uses the test GPU");

	self->pd = ibv_alloc_pd(self->ctx);
	ASSERT_NE(NULL, self->pd);
	self->cq = ibv_create_cq(self->ctx, 16, NULL, NULL, 0);
	ASSERT_NE(NULL, self->cq);
	init.send_cq = self->cq;
	init.recv_cq = self->cq;
	for (i = 0; i < 2; i++) {
		self->qp[i] = ibv_create_qp(self->pd, &init);
		ASSERT_NE(NULL, self->qp[i]);
	}
	for (i = 0; i < 2; i++)
		rxe_connect(_metadata, self, self->qp[i], self->qp[!i]->qp_num);
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
	for (i = 0; i < 2; i++)
		EXPECT_EQ(0, ibv_destroy_qp(self->qp[i]));
	EXPECT_EQ(0, ibv_dereg_mr(self->data_mr));
	EXPECT_EQ(0, munmap(self->data, self->data_len));
	EXPECT_EQ(0, ibv_destroy_cq(self->cq));
	EXPECT_EQ(0, ibv_dealloc_pd(self->pd));
	EXPECT_EQ(0, ibv_close_device(self->ctx));
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0))
		TH_LOG("pages of VRAM are still in use");
	p2p_gpu_close(&self->gpu);
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
	buf->mr = ibv_reg_mr(self->pd, buf->p, buf->len, access);
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
	struct p2ptest_gpu_info info = {};

	EXPECT_EQ(0, p2p_gpu_info(&self->gpu, &info));
	return info.migrated_out;
}

/* All of @buf is in host memory, to which @pages of it moved since @before */
static inline void rxe_expect_home(struct __test_metadata *_metadata,
				   RXE_SELF *self, struct rxe_buf *buf,
				   size_t pages, __u64 before)
{
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf->p, buf->len));
	EXPECT_EQ(pages, rxe_moved_out(_metadata, self) - before);
}

/* The status of the next completion; -1 if none comes within a minute */
static inline int rxe_complete(RXE_SELF *self)
{
	struct ibv_wc wc;
	int i, n;

	for (i = 0; i < 60000; i++) {
		n = ibv_poll_cq(self->cq, 1, &wc);
		if (n)
			return n < 0 ? -1 : (int)wc.status;
		p2p_sleep_ms(1);
	}
	return -1;
}

/* One request between @mine, of the side that asks, and @theirs */
static inline int rxe_request(struct __test_metadata *_metadata, RXE_SELF *self,
			      enum ibv_wr_opcode op, void *mine,
			      struct ibv_mr *my_mr, size_t len, void *theirs,
			      struct ibv_mr *their_mr)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)mine,
		.length = len,
		.lkey = my_mr->lkey,
	};
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = op,
	};

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)theirs;
		wr.wr.atomic.rkey = their_mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (op != IBV_WR_SEND) {
		wr.wr.rdma.remote_addr = (uintptr_t)theirs;
		wr.wr.rdma.rkey = their_mr->rkey;
	}
	EXPECT_EQ(0, ibv_post_send(self->qp[0], &wr, &bad));
	return rxe_complete(self);
}

static inline void rxe_expect_success(struct __test_metadata *_metadata,
				      int status)
{
	EXPECT_EQ(IBV_WC_SUCCESS, status)
		TH_LOG("%s", status < 0 ? "no completion" :
		       ibv_wc_status_str(status));
}

/* Write a part of a buffer with the same part of @seed */
static inline void rxe_buf_write(struct __test_metadata *_metadata,
				 RXE_SELF *self, struct rxe_buf *buf,
				 __u64 seed, size_t pos, size_t len)
{
	p2p_fill(self->data, seed, pos, len);
	rxe_expect_success(_metadata,
			   rxe_request(_metadata, self, IBV_WR_RDMA_WRITE,
				       self->data, self->data_mr, len,
				       buf->p + pos, buf->mr));
}

/* Read a part of a buffer: it has to hold that part of @seed */
static inline void rxe_buf_read(struct __test_metadata *_metadata,
				RXE_SELF *self, struct rxe_buf *buf, __u64 seed,
				size_t pos, size_t len)
{
	memset(self->data, 0, len);
	rxe_expect_success(_metadata,
			   rxe_request(_metadata, self, IBV_WR_RDMA_READ,
				       self->data, self->data_mr, len,
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
			.data = self->pd->handle,
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
	ret = ioctl(self->ctx->cmd_fd, RDMA_VERBS_IOCTL, cmd) ? -errno : 0;
	free(cmd);
	return ret;
}

#endif /* RXE_FIXTURE_H */
