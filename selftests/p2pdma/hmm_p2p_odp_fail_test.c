// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the RDMA core's on-demand paging with peer-to-peer DMA: a page whose
 * DMA mapping fails comes to host memory, and only that
 *
 * Needs a kernel with CONFIG_FAIL_HMM_DMA_MAP.
 */
#include "p2p_rdma.h"

#define PAGES		16
#define FAIL_DIR	"/sys/kernel/debug/fail_hmm_dma_map/"
#define VICTIM		5U

static int fail_write(const char *name, const char *text)
{
	ssize_t n = strlen(text);
	char path[96];
	int fd, ret = 0;

	snprintf(path, sizeof(path), FAIL_DIR "%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, text, n) != n)
		ret = -errno;
	close(fd);
	return ret;
}

static int fail_set(const char *name, unsigned long long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", value);
	return fail_write(name, text);
}

/* All new mappings of these page frames fail from now on */
static void fail_start(struct __test_metadata *_metadata,
		       unsigned long long first, unsigned long long last)
{
	ASSERT_EQ(0, fail_set("first-pfn", first));
	ASSERT_EQ(0, fail_set("last-pfn", last));
	ASSERT_EQ(0, fail_set("verbose", 0));
	ASSERT_EQ(0, fail_write("times", "-1"));
	ASSERT_EQ(0, fail_set("probability", 100));
}

/* Page frame of the alias of a page in VRAM */
static __u64 alias_pfn(struct __test_metadata *_metadata, RDMA_SELF *self,
		       const unsigned char *p)
{
	char name[P2P_PCI_NAME];
	__u64 loc, start, end;

	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, self->gpu.id, name));
	ASSERT_EQ(0, p2p_pci_bar(name, 2, &start, &end));
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, p, P2P_PAGE, &loc));
	ASSERT_TRUE(p2p_loc_is_vram(loc));
	return (start + p2p_loc_offset(loc)) / P2P_PAGE;
}

FIXTURE(odp_fail)
{
	RDMA_SELF rdma;
};

FIXTURE_SETUP(odp_fail)
{
	if (access(FAIL_DIR, F_OK))
		SKIP(return, "no " FAIL_DIR);
	odp_setup(_metadata, &self->rdma, NULL);
	if (!self->rdma.peer)
		SKIP(return, "no path to the GPU");
}

FIXTURE_TEARDOWN_PARENT(odp_fail)
{
	if (!access(FAIL_DIR, F_OK))
		EXPECT_EQ(0, fail_set("probability", 0));
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
	__u64 pfn;
	size_t i;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	before = p2p_info(_metadata, &rdma->gpu);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	pfn = alias_pfn(_metadata, rdma, buf.p + VICTIM * P2P_PAGE);
	fail_start(_metadata, pfn, pfn);
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
	EXPECT_EQ(1U, rdma_moves(_metadata, rdma, &before));
	EXPECT_EQ(0, p2p_stats_since(&stats));
	EXPECT_EQ(1U, stats.pages[P2PTEST_REASON_MAP_FAILED]);
	rdma_buf_read(_metadata, rdma, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* Without a fault, a page that cannot be mapped is left out, and stays */
TEST_F_TIMEOUT(odp_fail, snapshot, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	__u64 pfn;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	before = p2p_info(_metadata, &rdma->gpu);
	pfn = alias_pfn(_metadata, rdma, buf.p + VICTIM * P2P_PAGE);
	fail_start(_metadata, pfn, pfn);
	ASSERT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_SNAPSHOT));
	EXPECT_EQ(0, rdma_page(_metadata, rdma, &buf, VICTIM).flags);
	EXPECT_EQ(PAGE_ALL,
		  rdma_page(_metadata, rdma, &buf, VICTIM + 1).flags);
	EXPECT_EQ(buf.pages - 1, rdma_mapped(_metadata, rdma, &buf));
	EXPECT_EQ(0U, rdma_moves(_metadata, rdma, &before));
	rdma_buf_free(_metadata, rdma, &buf);
}

/* If host memory fails as well, that is an error, and it ends */
TEST_F_TIMEOUT(odp_fail, host_too, 600)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2p_buf buf;
	char c = 0;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	fail_start(_metadata, 0, ~0ULL);
	EXPECT_EQ(-EFAULT, rdma_fault(rdma->fd, buf.handle, buf.p, buf.len,
				      P2PTEST_RDMA_FAULT_WRITE));
	rdma_expect_pages(_metadata, rdma, &buf, P2PTEST_PAGE_UNMAPPED, 0);
	EXPECT_EQ(-EFAULT, rdma_xfer(rdma->fd, buf.handle, buf.p, &c, 1, true,
				     NULL));

	/* And it was the mapping alone that was wrong */
	ASSERT_EQ(0, fail_set("probability", 0));
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
	__u64 pfn;
	int round;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	churn.p = buf.p + (PAGES - 1) * P2P_PAGE;
	ASSERT_EQ(0, pthread_create(&thread, NULL, churn_run, &churn));
	for (round = 0; round < 50; round++) {
		ASSERT_LE(0, p2p_gpu_to_vram(&rdma->gpu, buf.p,
					     buf.len - P2P_PAGE));
		pfn = alias_pfn(_metadata, rdma, buf.p + VICTIM * P2P_PAGE);
		fail_start(_metadata, pfn, pfn);
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
		ASSERT_EQ(0, fail_set("probability", 0));
	}
	__atomic_store_n(&churn.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	p2p_expect_pattern(_metadata, "CPU read", buf.p, BEFORE, 0,
			   buf.len - P2P_PAGE);
	rdma_buf_free(_metadata, rdma, &buf);
}

TEST_HARNESS_MAIN
