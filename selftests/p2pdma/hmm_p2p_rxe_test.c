// SPDX-License-Identifier: GPL-2.0
/*
 * Test of RDMA on-demand paging (ODP) over device private memory with rxe, and
 * rdma-core's library above it
 *
 * rxe has no DMA: the CPU copies, and it cannot reach memory in a GPU. So pages
 * must come to host memory when rxe uses them, as they always did, and nobody
 * may ask for a peer address on its behalf.
 */
#include "rxe_fixture.h"

#include <pthread.h>

/* Remote access */

TEST_F_TIMEOUT(rxe, rdma_write, TIMEOUT_S)
{
	struct rxe_buf buf;
	__u64 before;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	rxe_buf_write(_metadata, self, &buf, AFTER, 0, buf.len);
	rxe_expect_home(_metadata, self, &buf, buf.pages, before);
	p2p_expect_pattern(_metadata, "CPU", buf.p, AFTER, 0, buf.len);
	rxe_buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(rxe, rdma_read, TIMEOUT_S)
{
	struct rxe_buf buf;
	__u64 before;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	rxe_buf_read(_metadata, self, &buf, BEFORE, 0, buf.len);
	rxe_expect_home(_metadata, self, &buf, buf.pages, before);
	p2p_expect_pattern(_metadata, "CPU", buf.p, BEFORE, 0, buf.len);
	rxe_buf_free(_metadata, &buf);
}

/* Some pages in VRAM, some in host memory, and two that were never touched */
TEST_F_TIMEOUT(rxe, mixed, TIMEOUT_S)
{
	struct rxe_buf buf;
	__u64 before;
	size_t i;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	ASSERT_EQ(0, madvise(buf.p, 2 * P2P_PAGE, MADV_DONTNEED));
	for (i = 3; i < buf.pages; i += 2)
		ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu, buf.p + i * P2P_PAGE,
					     P2P_PAGE));
	before = rxe_moved_out(_metadata, self);
	memset(self->data, 0xff, 2 * P2P_PAGE);
	rxe_expect_success(_metadata,
			   rxe_request(self, IBV_WR_RDMA_READ, 2 * P2P_PAGE,
				       buf.p, buf.mr));
	EXPECT_EQ(2 * P2P_PAGE, p2p_compare_byte(self->data, 0, 2 * P2P_PAGE));
	rxe_buf_read(_metadata, self, &buf, BEFORE, 2 * P2P_PAGE,
		     buf.len - 2 * P2P_PAGE);
	rxe_expect_home(_metadata, self, &buf, (buf.pages - 2) / 2, before);
	rxe_buf_free(_metadata, &buf);
}

/*
 * What was written is not lost when memory is reclaimed that was only read before.
 * These are more pages than a CPU keeps for itself before they can be reclaimed.
 */
TEST_F_TIMEOUT(rxe, reclaimed, TIMEOUT_S)
{
	const size_t pages = 8 * PAGES, step = self->data_len;
	struct rxe_buf buf = { .len = pages * P2P_PAGE, .pages = pages };
	size_t pos;

	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf.p);
	ASSERT_EQ(buf.len, p2p_compare_byte(buf.p, 0, buf.len));
	buf.mr = ibv_reg_mr(self->v.pd, buf.p, buf.len, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	for (pos = 0; pos < buf.len; pos += step)
		rxe_buf_write(_metadata, self, &buf, AFTER, pos, step);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_PAGEOUT));
	p2p_expect_pattern(_metadata, "CPU", buf.p, AFTER, 0, buf.len);
	rxe_buf_free(_metadata, &buf);
}

/* Pages that a transfer does not touch stay in VRAM */
TEST_F_TIMEOUT(rxe, part, TIMEOUT_S)
{
	const size_t from = 3 * P2P_PAGE + 100, to = 6 * P2P_PAGE + 50;
	struct rxe_buf buf;
	__u64 before;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	rxe_buf_write(_metadata, self, &buf, AFTER, from, to - from);
	EXPECT_EQ(4U, rxe_moved_out(_metadata, self) - before);
	EXPECT_EQ((long)buf.pages - 4,
		  p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	p2p_expect_pattern(_metadata, "before", buf.p, BEFORE, 0, from);
	p2p_expect_pattern(_metadata, "written", buf.p + from, AFTER, from,
			   to - from);
	p2p_expect_pattern(_metadata, "after", buf.p + to, BEFORE, to,
			   buf.len - to);
	rxe_buf_free(_metadata, &buf);
}

/* A region within pages: what is beside it does not belong to it */
TEST_F_TIMEOUT(rxe, unaligned, TIMEOUT_S)
{
	const size_t gap = 1000;
	struct rxe_buf buf;

	rxe_buf_init(_metadata, self, &buf, PAGES, 0);
	buf.mr = ibv_reg_mr(self->v.pd, buf.p + gap, buf.len - 2 * gap,
			    VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	rxe_buf_to_vram(_metadata, self, &buf);
	rxe_buf_write(_metadata, self, &buf, AFTER, gap, buf.len - 2 * gap);
	p2p_expect_pattern(_metadata, "before", buf.p, BEFORE, 0, gap);
	p2p_expect_pattern(_metadata, "written", buf.p + gap, AFTER, gap,
			   buf.len - 2 * gap);
	p2p_expect_pattern(_metadata, "after", buf.p + buf.len - gap, BEFORE,
			   buf.len - gap, gap);
	rxe_buf_to_vram(_metadata, self, &buf);
	rxe_buf_read(_metadata, self, &buf, AFTER, gap, buf.len - 2 * gap);
	rxe_buf_free(_metadata, &buf);
}

/* A region has other addresses for the network than for the process */
TEST_F_TIMEOUT(rxe, iova, TIMEOUT_S)
{
	const size_t from = P2P_PAGE + 100, len = 3 * P2P_PAGE;
	const __u64 iova = 16 * P2P_PAGE;
	void *theirs = (void *)(uintptr_t)(iova + from);
	struct ibv_sge sge = { .addr = iova };
	struct rxe_buf buf;

	rxe_buf_init(_metadata, self, &buf, PAGES, 0);
	buf.mr = ibv_reg_mr_iova(self->v.pd, buf.p, buf.len, iova, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	rxe_buf_to_vram(_metadata, self, &buf);
	p2p_fill(self->data, AFTER, from, len);
	rxe_expect_success(_metadata,
			   rxe_request(self, IBV_WR_RDMA_WRITE, len, theirs,
				       buf.mr));
	p2p_expect_pattern(_metadata, "before", buf.p, BEFORE, 0, from);
	p2p_expect_pattern(_metadata, "written", buf.p + from, AFTER, from,
			   len);
	p2p_expect_pattern(_metadata, "after", buf.p + from + len, BEFORE,
			   from + len, buf.len - from - len);

	sge.length = buf.len;
	sge.lkey = buf.mr->lkey;
	EXPECT_EQ(0, rxe_advise(self, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
				IB_UVERBS_ADVISE_MR_FLAG_FLUSH, &sge));
	memset(self->data, 0, len);
	rxe_expect_success(_metadata,
			   rxe_request(self, IBV_WR_RDMA_READ, len, theirs,
				       buf.mr));
	p2p_expect_pattern(_metadata, "RDMA read", self->data, AFTER, from, len);
	rxe_buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(rxe, atomic, TIMEOUT_S)
{
	struct rxe_buf buf;
	__u64 old, before;

	rxe_buf_init(_metadata, self, &buf, 1,
		     VERBS_ODP | IBV_ACCESS_REMOTE_ATOMIC);
	memcpy(&old, buf.p, sizeof(old));
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	rxe_expect_success(_metadata,
			   rxe_request(self, IBV_WR_ATOMIC_FETCH_AND_ADD,
				       sizeof(old), buf.p, buf.mr));
	rxe_expect_home(_metadata, self, &buf, 1, before);
	EXPECT_EQ(0, memcmp(&old, self->data, sizeof(old)));
	old++;
	EXPECT_EQ(0, memcmp(&old, buf.p, sizeof(old)));
	rxe_buf_free(_metadata, &buf);
}

/* Local access: a message from VRAM to VRAM */
TEST_F_TIMEOUT(rxe, send_receive, TIMEOUT_S)
{
	struct rxe_buf from, to;
	__u64 before;

	rxe_buf_init(_metadata, self, &from, PAGES, VERBS_ODP);
	rxe_buf_init(_metadata, self, &to, PAGES, VERBS_ODP);
	memset(to.p, 0, to.len);
	rxe_buf_to_vram(_metadata, self, &from);
	rxe_buf_to_vram(_metadata, self, &to);
	before = rxe_moved_out(_metadata, self);
	rxe_expect_success(_metadata,
			   verbs_do(&self->link, IBV_WR_SEND,
				    (struct verbs_end){ from.p, from.mr },
				    (struct verbs_end){ to.p, to.mr },
				    from.len));
	rxe_expect_home(_metadata, self, &from, 2 * PAGES, before);
	rxe_expect_home(_metadata, self, &to, 2 * PAGES, before);
	p2p_expect_pattern(_metadata, "CPU", to.p, BEFORE, 0, to.len);
	rxe_buf_free(_metadata, &to);
	rxe_buf_free(_metadata, &from);
}

/* Registration and prefetch */

/* Registration looks at the pages, and leaves them where they are */
TEST_F_TIMEOUT(rxe, register_in_vram, TIMEOUT_S)
{
	struct rxe_buf buf;
	__u64 before;

	rxe_buf_init(_metadata, self, &buf, PAGES, 0);
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	buf.mr = ibv_reg_mr(self->v.pd, buf.p, buf.len, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	EXPECT_EQ((long)buf.pages,
		  p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	rxe_buf_read(_metadata, self, &buf, BEFORE, 0, buf.len);
	rxe_buf_write(_metadata, self, &buf, AFTER, 0, buf.len);
	rxe_expect_home(_metadata, self, &buf, buf.pages, before);
	p2p_expect_pattern(_metadata, "CPU", buf.p, AFTER, 0, buf.len);
	rxe_buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(rxe, prefetch, TIMEOUT_S)
{
	struct rxe_buf buf;
	struct ibv_sge sge;
	__u64 before;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	sge = (struct ibv_sge){
		.addr = (uintptr_t)buf.p,
		.length = buf.len,
		.lkey = buf.mr->lkey,
	};
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	ASSERT_EQ(0, rxe_advise(self,
				IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
				IB_UVERBS_ADVISE_MR_FLAG_FLUSH, &sge));
	EXPECT_EQ((long)buf.pages,
		  p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	ASSERT_EQ(0, rxe_advise(self,
				IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
				IB_UVERBS_ADVISE_MR_FLAG_FLUSH, &sge));
	rxe_expect_home(_metadata, self, &buf, buf.pages, before);
	rxe_buf_write(_metadata, self, &buf, AFTER, 0, buf.len);
	p2p_expect_pattern(_metadata, "CPU", buf.p, AFTER, 0, buf.len);
	rxe_buf_free(_metadata, &buf);
}

/* Without on-demand paging there is nothing to prefetch */
TEST_F_TIMEOUT(rxe, prefetch_pinned, TIMEOUT_S)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)self->data,
		.length = P2P_PAGE,
		.lkey = self->data_mr->lkey,
	};

	EXPECT_EQ(-EINVAL,
		  rxe_advise(self, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
			     IB_UVERBS_ADVISE_MR_FLAG_FLUSH, &sge));
	EXPECT_EQ(-EINVAL,
		  rxe_advise(self, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, 0, &sge));
}

/* A region of which bit 31 of the length is set, and one that is longer */
TEST_F_TIMEOUT(rxe, long_region, TIMEOUT_S)
{
	static const size_t lens[] = { 2UL << 30, (4UL << 30) + P2P_PAGE };
	struct rxe_buf buf;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(lens); i++) {
		unsigned char *p = mmap(NULL, lens[i], PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS |
					MAP_NORESERVE, -1, 0);

		ASSERT_NE(MAP_FAILED, (void *)p);
		/* Its last page is that of the test */
		buf = (struct rxe_buf){
			.p = p + lens[i] - P2P_PAGE, .len = P2P_PAGE, .pages = 1,
		};
		buf.mr = ibv_reg_mr(self->v.pd, p, lens[i], VERBS_ODP);
		ASSERT_NE(NULL, buf.mr)
			TH_LOG("%zu bytes: %s", lens[i], strerror(errno));
		p2p_fill(buf.p, BEFORE, 0, buf.len);
		rxe_buf_to_vram(_metadata, self, &buf);
		rxe_buf_read(_metadata, self, &buf, BEFORE, 0, buf.len);
		rxe_buf_write(_metadata, self, &buf, AFTER, 0, buf.len);
		p2p_expect_pattern(_metadata, "CPU", buf.p, AFTER, 0, buf.len);
		ASSERT_EQ(0, ibv_dereg_mr(buf.mr));
		ASSERT_EQ(0, munmap(p, lens[i]));
	}
}

/* Without on-demand paging pages come home once, when they are pinned */
TEST_F_TIMEOUT(rxe, pinned, TIMEOUT_S)
{
	struct rxe_buf buf;
	__u64 before;

	rxe_buf_init(_metadata, self, &buf, PAGES, 0);
	rxe_buf_to_vram(_metadata, self, &buf);
	before = rxe_moved_out(_metadata, self);
	buf.mr = ibv_reg_mr(self->v.pd, buf.p, buf.len, VERBS_REMOTE);
	ASSERT_NE(NULL, buf.mr);
	rxe_expect_home(_metadata, self, &buf, buf.pages, before);
	EXPECT_EQ(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	rxe_buf_write(_metadata, self, &buf, AFTER, 0, buf.len);
	p2p_expect_pattern(_metadata, "CPU", buf.p, AFTER, 0, buf.len);
	rxe_buf_free(_metadata, &buf);
}

/* Memory that moves */

/* To VRAM again and again, where the GPU changes it */
TEST_F_TIMEOUT(rxe, again, TIMEOUT_S)
{
	unsigned char *data = malloc(PAGES * P2P_PAGE);
	struct rxe_buf buf;
	__u64 i;

	ASSERT_NE(NULL, data);
	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	for (i = 0; i < 4; i++) {
		rxe_buf_to_vram(_metadata, self, &buf);
		p2p_fill(data, GPU + i, 0, buf.len);
		EXPECT_EQ((long)buf.pages,
			  p2p_gpu_write(&self->gpu, buf.p, data, buf.len));
		rxe_buf_read(_metadata, self, &buf, GPU + i, 0, buf.len);
		rxe_buf_to_vram(_metadata, self, &buf);
		rxe_buf_write(_metadata, self, &buf, AFTER + i, 0, buf.len);
		rxe_buf_to_vram(_metadata, self, &buf);
		EXPECT_EQ((long)buf.pages,
			  p2p_gpu_read(&self->gpu, buf.p, data, buf.len));
		p2p_expect_pattern(_metadata, "GPU", data, AFTER + i, 0,
				   buf.len);
	}
	free(data);
	rxe_buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(rxe, huge, TIMEOUT_S)
{
	struct rxe_buf buf = { .len = P2P_HUGE, .pages = P2P_HUGE / P2P_PAGE };
	size_t pos, step = self->data_len;

	buf.p = p2p_alloc_huge(buf.len);
	ASSERT_NE(NULL, buf.p);
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	if (p2p_huge_bytes(buf.p) != (long)P2P_HUGE)
		SKIP(return, "the kernel gives no huge pages");
	buf.mr = ibv_reg_mr(self->v.pd, buf.p, buf.len, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	rxe_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf.p));
	for (pos = 0; pos < buf.len; pos += 2 * step)
		rxe_buf_write(_metadata, self, &buf, AFTER, pos, step);
	for (pos = 0; pos < buf.len; pos += 2 * step) {
		rxe_buf_read(_metadata, self, &buf, AFTER, pos, step);
		rxe_buf_read(_metadata, self, &buf, BEFORE, pos + step, step);
	}
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	rxe_buf_free(_metadata, &buf);
}

/* A thread that moves memory to VRAM until @stop is set */
struct mover {
	pthread_t thread;
	RXE_SELF *self;
	struct rxe_buf *buf;
	bool stop;
	long moved;
};

static void *mover_run(void *arg)
{
	struct mover *m = arg;
	long n;

	while (!__atomic_load_n(&m->stop, __ATOMIC_RELAXED)) {
		n = p2p_gpu_to_vram(&m->self->gpu, m->buf->p, m->buf->len);
		if (n < 0) {
			m->moved = n;
			break;
		}
		m->moved += n;
		p2p_sleep_ms(1);
	}
	return NULL;
}

TEST_F_TIMEOUT(rxe, race, TIMEOUT_S)
{
	struct rxe_buf buf;
	struct mover m = { .self = self, .buf = &buf };
	__u64 i;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	ASSERT_EQ(0, pthread_create(&m.thread, NULL, mover_run, &m));
	for (i = 0; i < 30; i++) {
		rxe_buf_write(_metadata, self, &buf, AFTER + i, 0, buf.len);
		rxe_buf_read(_metadata, self, &buf, AFTER + i, 0, buf.len);
	}
	__atomic_store_n(&m.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(m.thread, NULL));
	/* It did get in between */
	EXPECT_LT((long)PAGES, m.moved);
	rxe_buf_free(_metadata, &buf);
}

/* Memory in VRAM that the process gives up is out of reach */
TEST_F_TIMEOUT(rxe, unmapped, TIMEOUT_S)
{
	struct rxe_buf buf;

	rxe_buf_init(_metadata, self, &buf, PAGES, VERBS_ODP);
	rxe_buf_write(_metadata, self, &buf, AFTER, 0, buf.len);
	rxe_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	p2p_fill(self->data, GPU, 0, buf.len);
	EXPECT_EQ(IBV_WC_REM_ACCESS_ERR,
		  rxe_request(self, IBV_WR_RDMA_READ, buf.len, buf.p, buf.mr));
	p2p_expect_pattern(_metadata, "nothing", self->data, GPU, 0, buf.len);
	EXPECT_EQ(0, ibv_dereg_mr(buf.mr));
}

TEST_HARNESS_MAIN
