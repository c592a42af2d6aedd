// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the RDMA core's on-demand paging with peer-to-peer DMA: a page whose
 * DMA mapping fails comes to host memory, and only its folio
 *
 * Needs a kernel with CONFIG_FAIL_HMM_DMA_MAP.
 */
#include "p2p_rdma.h"

#define PAGES		16
#define VICTIM		5U
#define HUGE_VICTIM	123U

/* Mappings of aliases that failed since @from */
static __u64 fail_count(struct __test_metadata *_metadata,
			const struct p2p_stats *from)
{
	struct p2p_stats stats = *from;

	EXPECT_EQ(0, p2p_stats_since(&stats));
	return stats.pages[P2PTEST_REASON_MAP_FAILED];
}

FIXTURE(odp_fail)
{
	RDMA_SELF rdma;
};

FIXTURE_SETUP(odp_fail)
{
	if (!p2p_maps_can_fail())
		SKIP(return, "the kernel has no CONFIG_FAIL_HMM_DMA_MAP");
	odp_setup(_metadata, &self->rdma, NULL);
	if (self->rdma.fd < 0)
		return;
	if (!self->rdma.peer) {
		/* There is no teardown for what is skipped */
		odp_teardown(_metadata, &self->rdma, NULL);
		SKIP(return, "no path to the GPU");
	}
}

FIXTURE_TEARDOWN_PARENT(odp_fail)
{
	EXPECT_EQ(0, p2p_maps_work());
	odp_teardown(_metadata, &self->rdma, NULL);
}

/* The victim comes home, for the neighbours nothing changes */
TEST_F_TIMEOUT(odp_fail, one_page, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_gpu_info before;
	struct p2ptest_rdma_page page;
	struct p2p_stats stats;
	struct p2p_buf buf;
	size_t i;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	before = p2p_info(_metadata, &rdma->gpu);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_map_fails(&rdma->gpu,
				   buf.p + VICTIM * P2P_PAGE));
	rdma_buf_write(_metadata, rdma, &buf, AFTER);
	for (i = 0; i < buf.pages; i++) {
		page = rdma_page(_metadata, rdma, &buf, i);
		EXPECT_EQ(i == VICTIM ? P2PTEST_PAGE_HOST :
					rdma_vram_kind(rdma), page.kind) {
			TH_LOG("page %zu", i);
		}
		EXPECT_EQ(PAGE_ALL, page.flags);
	}
	EXPECT_EQ(buf.pages, rdma_mapped(_metadata, rdma, &buf));
	EXPECT_EQ(1U, p2p_moves(_metadata, &rdma->gpu, &before));
	EXPECT_EQ(0, p2p_stats_since(&stats));
	EXPECT_EQ(1U, stats.pages[P2PTEST_REASON_MAP_FAILED]);
	rdma_buf_read(_metadata, rdma, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* No page of the GPU can be mapped: each is tried once, and comes home */
TEST_F_TIMEOUT(odp_fail, all_pages, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_gpu_info before;
	struct p2p_stats stats;
	struct p2p_buf buf;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	before = p2p_info(_metadata, &rdma->gpu);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_aliases_fail(&rdma->gpu));
	ASSERT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_WRITE));
	rdma_expect_pages(_metadata, rdma, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	EXPECT_EQ(buf.pages, p2p_moves(_metadata, &rdma->gpu, &before));
	EXPECT_EQ(buf.pages, fail_count(_metadata, &stats));
	/* None of them counts as a page of the GPU, which this would unmap */
	EXPECT_EQ(0, rdma_rereg(rdma->fd, buf.handle, P2PTEST_RDMA_MR_ATOMIC));
	rdma_expect_pages(_metadata, rdma, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	rdma_buf_write(_metadata, rdma, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, rdma, &buf);
}

/*
 * Without a fault, a page that cannot be mapped is left out, and stays. Nobody
 * looks at the pages twice for it.
 */
TEST_F_TIMEOUT(odp_fail, snapshot, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_gpu_info before;
	struct p2p_stats stats;
	struct p2p_buf buf;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	before = p2p_info(_metadata, &rdma->gpu);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_map_fails(&rdma->gpu,
				   buf.p + VICTIM * P2P_PAGE));
	ASSERT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_SNAPSHOT));
	EXPECT_EQ(0, rdma_page(_metadata, rdma, &buf, VICTIM).flags);
	EXPECT_EQ(PAGE_ALL,
		  rdma_page(_metadata, rdma, &buf, VICTIM + 1).flags);
	EXPECT_EQ(buf.pages - 1, rdma_mapped(_metadata, rdma, &buf));
	EXPECT_EQ(0U, p2p_moves(_metadata, &rdma->gpu, &before));
	EXPECT_EQ(0, p2p_stats_since(&stats));
	EXPECT_EQ(buf.pages, stats.pages[p2p_path_reason(rdma->path)]);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* A page is replaced by a new one, for which alone the device faults */
static void fault_neighbour(struct __test_metadata *_metadata, RDMA_SELF *self,
			    struct p2p_buf *buf, size_t i)
{
	const __u64 mapped = rdma_mapped(_metadata, self, buf);
	unsigned char *p = buf->p + i * P2P_PAGE;

	ASSERT_EQ(0, madvise(p, P2P_PAGE, MADV_DONTNEED));
	EXPECT_EQ(mapped - 1, rdma_mapped(_metadata, self, buf));
	EXPECT_EQ(0, rdma_fault(self->fd, buf->handle, p, P2P_PAGE,
				P2PTEST_RDMA_FAULT_WRITE));
	EXPECT_EQ(PAGE_ALL, rdma_page(_metadata, self, buf, i).flags);
	EXPECT_EQ(mapped, rdma_mapped(_metadata, self, buf));
}

/*
 * The device writes its page table in blocks of eight, with what the core knows
 * of the neighbours. A page that could not be mapped is not among that, and
 * nobody tries again before it is needed.
 */
TEST_F_TIMEOUT(odp_fail, neighbour, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_gpu_info before;
	struct p2ptest_rdma_page page;
	struct p2p_stats stats;
	unsigned char *victim;
	struct p2p_buf buf;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	victim = buf.p + VICTIM * P2P_PAGE;
	before = p2p_info(_metadata, &rdma->gpu);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_map_fails(&rdma->gpu, victim));
	ASSERT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_SNAPSHOT));

	fault_neighbour(_metadata, rdma, &buf, VICTIM - 1);
	EXPECT_EQ(0, rdma_page(_metadata, rdma, &buf, VICTIM).flags);
	EXPECT_EQ(1, p2p_gpu_resident(&rdma->gpu, victim, P2P_PAGE));
	EXPECT_EQ(buf.pages - 1, rdma_mapped(_metadata, rdma, &buf));
	EXPECT_EQ(0U, p2p_moves(_metadata, &rdma->gpu, &before));
	EXPECT_EQ(1U, fail_count(_metadata, &stats));

	/* Now it is needed, and comes home, where it stays */
	rdma_buf_write(_metadata, rdma, &buf, AFTER);
	fault_neighbour(_metadata, rdma, &buf, VICTIM + 1);
	page = rdma_page(_metadata, rdma, &buf, VICTIM);
	EXPECT_EQ(P2PTEST_PAGE_HOST, page.kind);
	EXPECT_EQ(PAGE_ALL, page.flags);
	EXPECT_EQ(buf.pages, rdma_mapped(_metadata, rdma, &buf));
	EXPECT_EQ(1U, p2p_moves(_metadata, &rdma->gpu, &before));
	EXPECT_EQ(2U, fail_count(_metadata, &stats));
	EXPECT_EQ((long)buf.pages - 3,
		  p2p_gpu_resident(&rdma->gpu, buf.p, buf.len));
	p2p_expect_pattern(_metadata, "victim", victim, AFTER,
			   VICTIM * P2P_PAGE, P2P_PAGE);
	rdma_buf_write(_metadata, rdma, &buf, OTHER);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	rdma_buf_free(_metadata, rdma, &buf);
}

/*
 * Fault some pages of 2 MiB that are one folio in VRAM, and one of them cannot be
 * mapped. HMM resolves a huge entry as a whole: if one page has to come home, all
 * of the folio does, and what was mapped of it is mapped again.
 */
static void fail_huge(struct __test_metadata *_metadata, RDMA_SELF *self,
		      size_t first, size_t pages)
{
	const size_t at = first * P2P_PAGE, len = pages * P2P_PAGE;
	struct p2ptest_gpu_info before;
	struct p2ptest_rdma_page page;
	struct p2ptest_rdma_xfer xfer;
	struct p2p_stats stats;
	struct p2p_buf buf;
	size_t i, pos;
	char data[64];

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len, MR_ODP_WRITE,
			      &buf.handle));
	rdma_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_map_fails(&self->gpu,
				   buf.p + HUGE_VICTIM * P2P_PAGE));
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p + at, len,
				P2PTEST_RDMA_FAULT_WRITE));

	for (i = 0; i < buf.pages; i++) {
		bool faulted = i >= first && i < first + pages;

		page = rdma_page(_metadata, self, &buf, i);
		EXPECT_EQ(faulted ? P2PTEST_PAGE_HOST : P2PTEST_PAGE_UNMAPPED,
			  page.kind) {
			TH_LOG("page %zu", i);
		}
		EXPECT_EQ(faulted ? PAGE_ALL : 0, page.flags) {
			TH_LOG("page %zu", i);
		}
	}
	EXPECT_EQ(pages, rdma_mapped(_metadata, self, &buf));
	EXPECT_EQ(buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(0, p2p_stats_since(&stats));
	EXPECT_EQ(pages, stats.pages[p2p_path_reason(self->path)]);
	EXPECT_EQ(1U, stats.pages[P2PTEST_REASON_MAP_FAILED]);

	/* Mapped pages need no other fault: neither the victim nor others */
	for (i = HUGE_VICTIM - 1; i <= HUGE_VICTIM + 1; i++) {
		pos = i * P2P_PAGE + 16;
		p2p_fill(data, AFTER, pos, sizeof(data));
		EXPECT_EQ(0, rdma_xfer(self->fd, buf.handle, buf.p + pos, data,
				       sizeof(data), true, &xfer));
		EXPECT_EQ(0U, xfer.faults);
		p2p_expect_pattern(_metadata, "written", buf.p + pos, AFTER,
				   pos, sizeof(data));
		p2p_fill(buf.p + pos, BEFORE, pos, sizeof(data));
	}
	EXPECT_EQ(buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	rdma_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(odp_fail, huge, 600)
{
	fail_huge(_metadata, &self->rdma, 0, P2P_HUGE / P2P_PAGE);
}

/* It is the folio that moves, not what is faulted */
TEST_F_TIMEOUT(odp_fail, huge_part, 600)
{
	fail_huge(_metadata, &self->rdma, HUGE_VICTIM - 1, 3);
}

/* If host memory fails as well, that is an error, and it ends */
TEST_F_TIMEOUT(odp_fail, host_too, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2p_buf buf;
	char c = 0;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	ASSERT_EQ(0, p2p_maps_fail(0, ~0ULL));
	EXPECT_EQ(-EFAULT, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
				      P2PTEST_RDMA_FAULT_WRITE));
	rdma_expect_pages(_metadata, rdma, &buf, P2PTEST_PAGE_UNMAPPED, 0);
	EXPECT_EQ(-EFAULT, rdma_xfer(rdma->fd, buf.handle, buf.p, &c, 1, true,
				     NULL));

	/* And it was the mapping alone that was wrong */
	ASSERT_EQ(0, p2p_maps_work());
	rdma_buf_read(_metadata, rdma, &buf, BEFORE);
	rdma_buf_write(_metadata, rdma, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* Somebody who changes another page of the region all the time */
struct churn {
	unsigned char *p;
	bool stop;
};

static void *churn_run(void *arg)
{
	struct churn *churn = arg;

	while (!__atomic_load_n(&churn->stop, __ATOMIC_RELAXED)) {
		madvise(churn->p, P2P_PAGE, MADV_DONTNEED);
		p2p_sleep_ms(1);
	}
	return NULL;
}

/*
 * The page fault is done again because of the sequence number, too. The victim
 * still gets host memory then.
 */
TEST_F_TIMEOUT(odp_fail, sequence, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_rdma_page page;
	struct churn churn = {};
	struct p2p_buf buf;
	pthread_t thread;
	size_t i;
	int round;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	churn.p = buf.p + (PAGES - 1) * P2P_PAGE;
	ASSERT_EQ(0, pthread_create(&thread, NULL, churn_run, &churn));
	for (round = 0; round < 50; round++) {
		ASSERT_LE(0, p2p_gpu_to_vram(&rdma->gpu, buf.p,
					     buf.len - P2P_PAGE));
		ASSERT_EQ(0, p2p_map_fails(&rdma->gpu,
					   buf.p + VICTIM * P2P_PAGE));
		EXPECT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
					P2PTEST_RDMA_FAULT_WRITE));
		for (i = 0; i < PAGES - 1; i++) {
			page = rdma_page(_metadata, rdma, &buf, i);
			EXPECT_EQ(i == VICTIM ? P2PTEST_PAGE_HOST :
						rdma_vram_kind(rdma),
				  page.kind) {
				TH_LOG("round %d, page %zu", round, i);
			}
		}
		ASSERT_EQ(0, p2p_maps_work());
	}
	__atomic_store_n(&churn.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	p2p_expect_pattern(_metadata, "CPU read", buf.p, BEFORE, 0,
			   buf.len - P2P_PAGE);
	rdma_buf_free(_metadata, rdma, &buf);
}

/*
 * A page fault looks for host memory in place of a page that could not be mapped,
 * and atomic access is added meanwhile: it must not map the other pages of the
 * GPU, which it has found again. Both wait for the lock, the page fault first.
 * Returns whether they got it in this order.
 */
static bool add_atomic_between(struct __test_metadata *_metadata,
			       RDMA_SELF *self)
{
	struct p2p_buf buf;
	struct queued hold = { .rdma = self, .buf = &buf };
	struct queued fault = hold;
	struct p2ptest_rdma_page page;
	struct p2p_stats stats;
	bool between;
	size_t i;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_map_fails(&self->gpu, buf.p + VICTIM * P2P_PAGE));
	queued_start(_metadata, &hold, queued_hold);
	queued_start(_metadata, &fault, queued_fault);
	EXPECT_EQ(0, rdma_rereg(self->fd, buf.handle, P2PTEST_RDMA_MR_ATOMIC));
	queued_end(_metadata, &fault);
	queued_end(_metadata, &hold);
	/* Not if nothing failed, or if all was mapped before and taken away */
	between = fail_count(_metadata, &stats) == 1;
	for (i = 0; i < buf.pages; i++) {
		page = rdma_page(_metadata, self, &buf, i);
		EXPECT_NE(rdma_vram_kind(self), page.kind) {
			TH_LOG("page %zu", i);
		}
		between = between && page.kind == P2PTEST_PAGE_HOST;
	}
	rdma_buf_write(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	ASSERT_EQ(0, p2p_maps_work());
	rdma_buf_free(_metadata, self, &buf);
	return between;
}

TEST_F_TIMEOUT(odp_fail, atomic_added, 600)
{
	bool between = false;
	int round;

	for (round = 0; round < 10 && !between; round++)
		between = add_atomic_between(_metadata, &self->rdma);
	EXPECT_TRUE(between);
}

TEST_HARNESS_MAIN
