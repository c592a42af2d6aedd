// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the RDMA core's on-demand paging with peer-to-peer DMA: memory
 * regions reach pages in VRAM where they are, and host memory where not
 *
 * hmm_p2p_odp_race_test.c has what changes while DMA runs, and
 * hmm_p2p_odp_fail_test.c mappings that fail.
 */
#include "p2p_rdma.h"

#define PAGES		16U

/* Pages in VRAM, which DMA then writes and reads */

FIXTURE(odp_place)
{
	RDMA_SELF rdma;
};

FIXTURE_VARIANT(odp_place)
{
	size_t step;	/* each page of that many is in VRAM; 0: none */
};

FIXTURE_VARIANT_ADD(odp_place, ram) { .step = 0 };
FIXTURE_VARIANT_ADD(odp_place, vram) { .step = 1 };
FIXTURE_VARIANT_ADD(odp_place, mixed) { .step = 2 };

FIXTURE_SETUP(odp_place)
{
	odp_setup(_metadata, &self->rdma, NULL);
}

FIXTURE_TEARDOWN_PARENT(odp_place)
{
	odp_teardown(_metadata, &self->rdma, NULL);
}

TEST_F_TIMEOUT(odp_place, transfer, TIMEOUT_S)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2ptest_gpu_info before;
	struct p2ptest_rdma_page page;
	struct p2p_buf buf;
	size_t i, vram = 0;
	void *data;

	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	for (i = 0; variant->step && i < buf.pages; i += variant->step) {
		ASSERT_EQ(1, p2p_gpu_to_vram(&rdma->gpu, buf.p + i * P2P_PAGE,
					     P2P_PAGE));
		vram++;
	}

	before = p2p_info(_metadata, &rdma->gpu);
	rdma_buf_read(_metadata, rdma, &buf, BEFORE);
	rdma_buf_write(_metadata, rdma, &buf, AFTER);
	for (i = 0; i < buf.pages; i++) {
		page = rdma_page(_metadata, rdma, &buf, i);
		EXPECT_EQ(variant->step && i % variant->step == 0 ?
				  rdma_vram_kind(rdma) : P2PTEST_PAGE_HOST,
			  page.kind) {
			TH_LOG("page %zu", i);
		}
		EXPECT_EQ(PAGE_ALL, page.flags);
	}
	EXPECT_EQ(buf.pages, rdma_mapped(_metadata, rdma, &buf));
	EXPECT_EQ(rdma->peer ? 0 : vram,
		  p2p_moves(_metadata, &rdma->gpu, &before));
	EXPECT_EQ(rdma->peer ? (long)vram : 0,
		  p2p_gpu_resident(&rdma->gpu, buf.p, buf.len));

	rdma_buf_read(_metadata, rdma, &buf, AFTER);
	data = calloc(1, buf.len);
	ASSERT_NE(NULL, data);
	EXPECT_EQ(rdma->peer ? (long)vram : 0,
		  p2p_gpu_read(&rdma->gpu, buf.p, data, buf.len));
	p2p_expect_pattern(_metadata, "GPU read", data, AFTER, 0, buf.len);
	free(data);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* A pinned region has host memory, and keeps it */
TEST_F_TIMEOUT(odp, pinned, TIMEOUT_S)
{
	struct p2ptest_gpu_info before = p2p_info(_metadata, &self->gpu);
	struct p2p_buf buf;
	__u32 odp;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP);
	odp = buf.handle;
	rdma_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len, MR_WRITE, &buf.handle));
	EXPECT_EQ(0, rdma_dereg(self->fd, odp));
	EXPECT_EQ(2 * buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	EXPECT_EQ(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	rdma_buf_read(_metadata, self, &buf, BEFORE);
	rdma_buf_write(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	EXPECT_EQ(-EOPNOTSUPP, rdma_fault(self->fd, buf.handle, buf.p, 1, 0));
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

static void expect_host_only(struct __test_metadata *_metadata,
			     RDMA_SELF *self, __u32 flag)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE,
		      MR_ODP_WRITE | flag);
	rdma_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	rdma_buf_write(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	EXPECT_EQ(buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

/* There is no atomic access to a peer: such a region gets host memory */
TEST_F_TIMEOUT(odp, atomic, TIMEOUT_S)
{
	expect_host_only(_metadata, self, P2PTEST_RDMA_MR_ATOMIC);
}

/* A memory window may allow more than the region that it is on */
TEST_F_TIMEOUT(odp, windows, TIMEOUT_S)
{
	expect_host_only(_metadata, self, P2PTEST_RDMA_MR_WINDOWS);
}

/* If it is added later, the device has to fault again, on host memory */
TEST_F_TIMEOUT(odp, atomic_added, TIMEOUT_S)
{
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	rdma_buf_write(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, rdma_vram_kind(self),
			  PAGE_ALL);
	EXPECT_EQ(0, rdma_rereg(self->fd, buf.handle, P2PTEST_RDMA_MR_ATOMIC));
	if (self->peer)
		rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_UNMAPPED,
				  0);
	rdma_buf_read(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);

	rdma_buf_to_vram(_metadata, self, &buf);
	rdma_buf_write(_metadata, self, &buf, OTHER);
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	rdma_buf_free(_metadata, self, &buf);
}

/* Pages that were the GPU's once, and are host memory by now, stay mapped */
TEST_F_TIMEOUT(odp, atomic_added_at_home, TIMEOUT_S)
{
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	rdma_buf_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_write(_metadata, self, &buf, OTHER);
	EXPECT_EQ(0, rdma_rereg(self->fd, buf.handle, P2PTEST_RDMA_MR_ATOMIC));
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	rdma_buf_free(_metadata, self, &buf);
}

/* Neither region nor mapping allow more than the process may do */
TEST_F_TIMEOUT(odp, read_only, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	__u32 writable;
	char c = 0;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP);
	rdma_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	EXPECT_EQ(-EPERM, rdma_xfer(self->fd, buf.handle, buf.p, &c, 1, true,
				    NULL));
	EXPECT_EQ(-EPERM, rdma_fault(self->fd, buf.handle, buf.p, 1,
				     P2PTEST_RDMA_FAULT_WRITE));
	rdma_buf_read(_metadata, self, &buf, BEFORE);
	EXPECT_EQ(self->peer ? 0 : buf.pages,
		  p2p_moves(_metadata, &self->gpu, &before));

	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len, MR_ODP_WRITE,
			      &writable));
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	EXPECT_EQ(-EPERM, rdma_xfer(self->fd, writable, buf.p, &c, 1, true,
				    NULL));
	rdma_buf_read(_metadata, self, &buf, BEFORE);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	EXPECT_EQ(0, rdma_dereg(self->fd, writable));
	rdma_buf_free(_metadata, self, &buf);
}

/* A page that was faulted to read, like the zero page, is not written to */
TEST_F_TIMEOUT(odp, upgrade, TIMEOUT_S)
{
	struct p2ptest_rdma_page page;
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len, 0));
	page = rdma_page(_metadata, self, &buf, 0);
	EXPECT_EQ(PAGE_ALL & ~P2PTEST_RDMA_PAGE_WRITABLE, page.flags);
	rdma_buf_write(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

/* A look at what is there maps aliases, too, and changes nothing */
TEST_F_TIMEOUT(odp, snapshot, TIMEOUT_S)
{
	const int kind = self->peer ? p2p_peer_kind(self->path) :
				      P2PTEST_PAGE_UNMAPPED;
	struct p2ptest_gpu_info before;
	struct p2ptest_rdma_page page;
	struct p2p_buf buf;
	size_t i;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	/* 0 to 3 in VRAM, 4 to 7 nowhere, the others in host memory */
	ASSERT_EQ(4, p2p_gpu_to_vram(&self->gpu, buf.p, 4 * P2P_PAGE));
	ASSERT_EQ(0, madvise(buf.p + 4 * P2P_PAGE, 4 * P2P_PAGE,
			     MADV_DONTNEED));
	before = p2p_info(_metadata, &self->gpu);
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_SNAPSHOT));
	for (i = 0; i < buf.pages; i++) {
		page = rdma_page(_metadata, self, &buf, i);
		EXPECT_EQ(i < 4 ? kind :
			  i < 8 ? P2PTEST_PAGE_UNMAPPED : P2PTEST_PAGE_HOST,
			  page.kind) {
			TH_LOG("page %zu", i);
		}
	}
	EXPECT_EQ(self->peer ? 12U : 8U, rdma_mapped(_metadata, self, &buf));
	EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
	rdma_buf_free(_metadata, self, &buf);
}

/* The core counts each page once that is mapped, and not when it is not */
TEST_F_TIMEOUT(odp, count, TIMEOUT_S)
{
	const size_t half = PAGES / 2 * P2P_PAGE;
	struct p2p_buf buf;
	int i;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	EXPECT_EQ(0U, rdma_mapped(_metadata, self, &buf));
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len,
					i & 1 ? P2PTEST_RDMA_FAULT_WRITE : 0));
		EXPECT_EQ(PAGES, rdma_mapped(_metadata, self, &buf));
	}
	ASSERT_EQ(0, madvise(buf.p, half, MADV_DONTNEED));
	EXPECT_EQ(PAGES / 2, rdma_mapped(_metadata, self, &buf));
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, P2P_PAGE, 0));
	EXPECT_EQ(PAGES / 2 + 1, rdma_mapped(_metadata, self, &buf));
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_UNMAPPED, 0);
	rdma_buf_free(_metadata, self, &buf);
}

/*
 * A page fault that fails leaves nothing behind that the core takes for a page.
 * Else it would stay when the page is freed, as nothing is mapped that had to be
 * invalidated, and get mapped along with a neighbour.
 */
TEST_F_TIMEOUT(odp, failed_fault, TIMEOUT_S)
{
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	ASSERT_EQ(0, munmap(buf.p + 8 * P2P_PAGE, 8 * P2P_PAGE));
	EXPECT_EQ(-EFAULT, rdma_fault(self->fd, buf.handle, buf.p, buf.len, 0));
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_UNMAPPED, 0);

	/* The process gives a page back, and the device faults its neighbour */
	ASSERT_EQ(0, munmap(buf.p, P2P_PAGE));
	EXPECT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p + P2P_PAGE,
				P2P_PAGE, 0));
	EXPECT_EQ(0, rdma_page(_metadata, self, &buf, 0).flags);
	EXPECT_EQ(PAGE_ALL, rdma_page(_metadata, self, &buf, 1).flags);
	EXPECT_EQ(0, rdma_page(_metadata, self, &buf, 2).flags);
	rdma_buf_free(_metadata, self, &buf);
}

/* 2 MiB that are one folio in VRAM */
TEST_F_TIMEOUT(odp, huge, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	const size_t at = 123 * P2P_PAGE + 456;
	struct p2p_buf buf;
	char data[64];

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len, MR_ODP_WRITE,
			      &buf.handle));
	rdma_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf.p));
	before = p2p_info(_metadata, &self->gpu);
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_WRITE));
	rdma_expect_pages(_metadata, self, &buf, rdma_vram_kind(self),
			  PAGE_ALL);
	EXPECT_EQ(self->peer ? 0 : buf.pages,
		  p2p_moves(_metadata, &self->gpu, &before));
	/* Left there as a whole, or brought home as a whole */
	EXPECT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf.p));
	p2p_fill(data, AFTER, at, sizeof(data));
	EXPECT_EQ(0, rdma_xfer(self->fd, buf.handle, buf.p + at, data,
			       sizeof(data), true, NULL));
	p2p_expect_pattern(_metadata, "written", buf.p + at, AFTER, at,
			   sizeof(data));
	p2p_expect_pattern(_metadata, "in front", buf.p, BEFORE, 0, at);
	p2p_expect_pattern(_metadata, "behind", buf.p + at + sizeof(data),
			   BEFORE, at + sizeof(data),
			   buf.len - at - sizeof(data));
	rdma_buf_free(_metadata, self, &buf);
}

/* A region of huge pages, of which each is one entry in the core's list */

#define NR_HUGEPAGES	"/proc/sys/vm/nr_hugepages"
#define HUGE_PAGES	2L

FIXTURE(odp_hugetlb)
{
	RDMA_SELF rdma;
};

FIXTURE_SETUP(odp_hugetlb)
{
	long before = p2p_number_in(NR_HUGEPAGES, "");
	char wanted[24];

	self->rdma.fd = -1;
	if (before < 0)
		SKIP(return, "no " NR_HUGEPAGES);
	odp_setup(_metadata, &self->rdma, NULL);
	if (self->rdma.fd < 0)
		return;
	snprintf(wanted, sizeof(wanted), "%ld", before + HUGE_PAGES);
	ASSERT_EQ(0, p2p_change(NR_HUGEPAGES, wanted));
	if (p2p_number_in(NR_HUGEPAGES, "") < before + HUGE_PAGES) {
		/* There is no teardown for what is skipped */
		odp_teardown(_metadata, &self->rdma, NULL);
		SKIP(return, "no huge pages can be reserved");
	}
}

FIXTURE_TEARDOWN_PARENT(odp_hugetlb)
{
	odp_teardown(_metadata, &self->rdma, NULL);
}

/* All small pages of a huge page are described alike */
static void expect_huge(struct __test_metadata *_metadata, RDMA_SELF *self,
			const struct p2p_buf *buf, size_t huge, bool mapped)
{
	struct p2ptest_rdma_page page[P2P_HUGE / P2P_PAGE];
	size_t i;

	memset(page, 0xff, sizeof(page));
	EXPECT_EQ(0, rdma_query(self->fd, buf->handle, buf->p + huge * P2P_HUGE,
				P2P_HUGE, page, NULL));
	for (i = 0; i < P2P_HUGE / P2P_PAGE; i++) {
		EXPECT_EQ(mapped ? P2PTEST_PAGE_HOST : P2PTEST_PAGE_UNMAPPED,
			  page[i].kind) {
			TH_LOG("huge page %zu, page %zu", huge, i);
		}
		EXPECT_EQ(mapped ? PAGE_ALL : 0, page[i].flags) {
			TH_LOG("huge page %zu, page %zu", huge, i);
		}
	}
}

/* Write and read by DMA what is mapped: nothing else may change */
static void expect_huge_access(struct __test_metadata *_metadata,
			       RDMA_SELF *self, struct p2p_buf *buf, size_t pos)
{
	struct p2ptest_rdma_xfer xfer;
	char data[64], got[64] = {};

	p2p_fill(data, AFTER, pos, sizeof(data));
	EXPECT_EQ(0, rdma_xfer(self->fd, buf->handle, buf->p + pos, data,
			       sizeof(data), true, &xfer));
	EXPECT_EQ(0U, xfer.faults);
	EXPECT_EQ(0, rdma_xfer(self->fd, buf->handle, buf->p + pos, got,
			       sizeof(got), false, &xfer));
	EXPECT_EQ(0U, xfer.faults);
	p2p_expect_pattern(_metadata, "DMA read", got, AFTER, pos, sizeof(got));
	p2p_expect_pattern(_metadata, "written", buf->p + pos, AFTER, pos,
			   sizeof(data));
	p2p_fill(buf->p + pos, BEFORE, pos, sizeof(data));
	p2p_buf_cpu_read(_metadata, buf, BEFORE);
}

/* Each address leads to its byte, from one huge page to the next as well */
TEST_F_TIMEOUT(odp_hugetlb, transfer, TIMEOUT_S)
{
	const size_t at[] = {
		0, P2P_HUGE / 2 + 16, P2P_HUGE - 32, P2P_HUGE + P2P_PAGE,
		HUGE_PAGES * P2P_HUGE - 64,
	};
	RDMA_SELF *rdma = &self->rdma;
	struct p2p_buf buf = {
		.len = HUGE_PAGES * P2P_HUGE,
		.pages = HUGE_PAGES * P2P_HUGE / P2P_PAGE,
	};
	size_t i;

	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	ASSERT_NE(MAP_FAILED, buf.p);
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	ASSERT_EQ(0, rdma_reg(rdma->fd, buf.p, buf.len,
			      MR_ODP_WRITE | P2PTEST_RDMA_MR_HUGETLB,
			      &buf.handle));
	/* Any byte leads to all of its huge page */
	ASSERT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p + 12345, P2P_HUGE,
				P2PTEST_RDMA_FAULT_WRITE));
	expect_huge(_metadata, rdma, &buf, 0, true);
	expect_huge(_metadata, rdma, &buf, 1, true);
	EXPECT_EQ(2U, rdma_mapped(_metadata, rdma, &buf));
	for (i = 0; i < ARRAY_SIZE(at); i++)
		expect_huge_access(_metadata, rdma, &buf, at[i]);

	/* They are invalidated and faulted one by one */
	ASSERT_EQ(0, madvise(buf.p + P2P_HUGE, P2P_HUGE, MADV_DONTNEED));
	expect_huge(_metadata, rdma, &buf, 0, true);
	expect_huge(_metadata, rdma, &buf, 1, false);
	EXPECT_EQ(1U, rdma_mapped(_metadata, rdma, &buf));
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	ASSERT_EQ(0, rdma_fault(rdma->fd, buf.handle, buf.p + P2P_HUGE, 1,
				P2PTEST_RDMA_FAULT_WRITE));
	EXPECT_EQ(2U, rdma_mapped(_metadata, rdma, &buf));
	for (i = 0; i < ARRAY_SIZE(at); i++)
		expect_huge_access(_metadata, rdma, &buf, at[i]);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* The device uses huge translations, but an alias need not be huge */
TEST_F_TIMEOUT(odp, hugetlb_vram, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len,
			      MR_ODP_WRITE | P2PTEST_RDMA_MR_HUGETLB,
			      &buf.handle));
	rdma_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_WRITE));
	expect_huge(_metadata, self, &buf, 0, true);
	EXPECT_EQ(1U, rdma_mapped(_metadata, self, &buf));
	EXPECT_EQ(buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	expect_huge_access(_metadata, self, &buf, P2P_PAGE - 32);
	rdma_buf_free(_metadata, self, &buf);
}

/* Pages that are not huge are refused there, and none is left behind */
TEST_F_TIMEOUT(odp, hugetlb_small, TIMEOUT_S)
{
	struct p2p_buf buf;
	char c = 0;

	buf.pages = P2P_HUGE / P2P_PAGE;
	buf.len = P2P_HUGE;
	buf.p = p2p_alloc_huge(buf.len);
	ASSERT_NE(NULL, buf.p);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_NOHUGEPAGE));
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len,
			      MR_ODP_WRITE | P2PTEST_RDMA_MR_HUGETLB,
			      &buf.handle));
	EXPECT_EQ(-EINVAL, rdma_fault(self->fd, buf.handle, buf.p, buf.len,
				      P2PTEST_RDMA_FAULT_WRITE));
	EXPECT_EQ(-EINVAL, rdma_xfer(self->fd, buf.handle, buf.p, &c, 1, true,
				     NULL));
	expect_huge(_metadata, self, &buf, 0, false);
	EXPECT_EQ(0U, rdma_mapped(_metadata, self, &buf));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	rdma_buf_free(_metadata, self, &buf);
}

/* Few pages here and there in a large region, of one part or of many */

#define LARGE		(512 * P2P_HUGE)
#define SPOTS		32U

FIXTURE(odp_large)
{
	RDMA_SELF rdma;
};

FIXTURE_VARIANT(odp_large)
{
	__u32 flags;
};

FIXTURE_VARIANT_ADD(odp_large, one) { .flags = MR_ODP_WRITE };
FIXTURE_VARIANT_ADD(odp_large, implicit)
{
	.flags = MR_ODP_WRITE | P2PTEST_RDMA_MR_IMPLICIT
};

FIXTURE_SETUP(odp_large)
{
	odp_setup(_metadata, &self->rdma, NULL);
}

FIXTURE_TEARDOWN_PARENT(odp_large)
{
	odp_teardown(_metadata, &self->rdma, NULL);
}

TEST_F_TIMEOUT(odp_large, scattered, TIMEOUT_S)
{
	RDMA_SELF *rdma = &self->rdma;
	const size_t step = LARGE / SPOTS;
	struct p2ptest_gpu_info before;
	struct p2ptest_rdma_page page;
	struct p2p_buf buf = { .len = LARGE };
	unsigned char *spot[SPOTS];
	char data[64], got[64];
	size_t i;

	buf.p = mmap(NULL, LARGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, buf.p);
	ASSERT_EQ(0, madvise(buf.p, LARGE, MADV_NOHUGEPAGE));
	ASSERT_EQ(0, rdma_reg(rdma->fd, buf.p, LARGE, variant->flags,
			      &buf.handle));
	/* The last one is the last page of all */
	for (i = 0; i < SPOTS; i++) {
		spot[i] = buf.p + i * step + i * (step - P2P_PAGE) /
			  (SPOTS - 1) / P2P_PAGE * P2P_PAGE;
		spot[i][0] = i;
		if (i & 1)
			ASSERT_EQ(1, p2p_gpu_to_vram(&rdma->gpu, spot[i],
						     P2P_PAGE));
	}

	before = p2p_info(_metadata, &rdma->gpu);
	for (i = 0; i < SPOTS; i++) {
		p2p_fill(data, i, 0, sizeof(data));
		EXPECT_EQ(0, rdma_xfer(rdma->fd, buf.handle, spot[i] + 16,
				       data, sizeof(data), true, NULL));
		EXPECT_EQ(0, rdma_query(rdma->fd, buf.handle, spot[i], 1,
					&page, NULL));
		EXPECT_EQ(i & 1 ? rdma_vram_kind(rdma) : P2PTEST_PAGE_HOST,
			  page.kind);
	}
	EXPECT_EQ(rdma->peer ? 0 : SPOTS / 2,
		  p2p_moves(_metadata, &rdma->gpu, &before));
	for (i = 0; i < SPOTS; i++) {
		EXPECT_EQ(0, rdma_xfer(rdma->fd, buf.handle, spot[i] + 16, got,
				       sizeof(got), false, NULL));
		EXPECT_EQ(sizeof(got), p2p_compare(got, i, 0, sizeof(got)));
		EXPECT_EQ(sizeof(got), p2p_compare(spot[i] + 16, i, 0,
						   sizeof(got)));
		EXPECT_EQ(i, spot[i][0]);
	}

	/* From one part to the next, where nothing is mapped yet */
	p2p_fill(data, SPOTS, 0, sizeof(data));
	spot[0] = (unsigned char *)(((uintptr_t)buf.p + LARGE / 2) &
				    ~((64UL << 20) - 1)) - sizeof(data) / 2;
	EXPECT_EQ(0, rdma_xfer(rdma->fd, buf.handle, spot[0], data,
			       sizeof(data), true, NULL));
	EXPECT_EQ(sizeof(data), p2p_compare(spot[0], SPOTS, 0, sizeof(data)));
	rdma_buf_free(_metadata, rdma, &buf);
}

/* A region belongs to a file and to an address space */
TEST_F_TIMEOUT(odp, foreign, TIMEOUT_S)
{
	struct p2ptest_rdma_page page;
	struct p2p_buf buf;
	int other;
	pid_t pid;
	char c = 0;

	rdma_buf_init(_metadata, self, &buf, 4, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len,
				P2PTEST_RDMA_FAULT_WRITE));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		__u32 own;
		int bad = 0;

		bad |= rdma_xfer(self->fd, buf.handle, buf.p, &c, 1, false,
				 NULL) != -EPERM;
		bad |= (rdma_xfer(self->fd, buf.handle, buf.p, &c, 1, true,
				  NULL) != -EPERM) << 1;
		bad |= (rdma_fault(self->fd, buf.handle, buf.p, 1, 0) !=
			-EPERM) << 2;
		bad |= (rdma_query(self->fd, buf.handle, buf.p, 1, &page,
				   NULL) != -EPERM) << 3;
		bad |= (rdma_dereg(self->fd, buf.handle) != -EPERM) << 4;
		/* Its own region at the same address is its own memory */
		bad |= !!rdma_reg(self->fd, buf.p, buf.len, MR_ODP_WRITE,
				  &own) << 5;
		bad |= !!rdma_xfer(self->fd, own, buf.p, &c, 1, true, NULL)
		       << 6;
		_exit(bad);
	}
	p2p_wait_child(_metadata, pid);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);

	other = p2p_dev_open(RDMA_DRIVER, 0);
	ASSERT_LE(0, other);
	EXPECT_EQ(-ENOENT, rdma_xfer(other, buf.handle, buf.p, &c, 1, false,
				     NULL));
	EXPECT_EQ(-ENOENT, rdma_dereg(other, buf.handle));
	EXPECT_EQ(0, close(other));
	rdma_buf_read(_metadata, self, &buf, BEFORE);
	rdma_buf_free(_metadata, self, &buf);
	EXPECT_EQ(-ENOENT, rdma_dereg(self->fd, buf.handle));
}

/* Operations that not every kind of region supports */
TEST_F_TIMEOUT(odp, kinds, TIMEOUT_S)
{
	struct p2ptest_rdma_page page = { .kind = 0xff };
	struct p2ptest_rdma_query query = {
		.len = 1,
		.pages = (uintptr_t)&page,
		.hold = 1,
	};
	const int fd = self->fd;
	struct p2p_buf buf;
	__u64 mapped = 1;
	__u32 handle;

	rdma_buf_init(_metadata, self, &buf, 2, BEFORE, MR_ODP_WRITE);

	/* Where an implicit region was not used there is nothing to describe */
	ASSERT_EQ(0, rdma_reg(fd, buf.p, buf.len, MR_ODP_WRITE |
			      P2PTEST_RDMA_MR_IMPLICIT, &handle));
	EXPECT_EQ(0, rdma_query(fd, handle, buf.p, 1, &page, &mapped));
	EXPECT_EQ(0, page.kind);
	EXPECT_EQ(0, page.flags);
	EXPECT_EQ(0ULL, mapped);
	EXPECT_EQ(-EOPNOTSUPP, rdma_rereg(fd, handle,
					  P2PTEST_RDMA_MR_ATOMIC));
	EXPECT_EQ(0, rdma_dereg(fd, handle));

	/* A pinned region has no lock to hold, and this one no write access */
	ASSERT_EQ(0, rdma_reg(fd, buf.p, buf.len, 0, &handle));
	query.addr = (uintptr_t)buf.p;
	query.handle = handle;
	EXPECT_EQ(-EINVAL, rdma_ioctl(fd, P2PTEST_RDMA_QUERY, &query));
	EXPECT_EQ(-EINVAL, rdma_rereg(fd, handle, P2PTEST_RDMA_MR_ATOMIC));
	EXPECT_EQ(0, rdma_dereg(fd, handle));

	rdma_buf_free(_metadata, self, &buf);
}

/* There is an end to regions, and they go with the file */
TEST_F_TIMEOUT(odp, many, TIMEOUT_S)
{
	int other = p2p_dev_open(RDMA_DRIVER, 0), ret = 0, n;
	struct p2p_buf buf;
	__u32 handle;

	ASSERT_LE(0, other);
	rdma_buf_init(_metadata, self, &buf, 1, BEFORE, MR_ODP_WRITE);
	for (n = 0; !ret && n < 4096; n++)
		ret = rdma_reg(other, buf.p, 1, MR_ODP, &handle);
	EXPECT_EQ(-ENOSPC, ret);
	EXPECT_EQ(0, close(other));

	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, 1, MR_ODP, &handle));
	EXPECT_EQ(0, rdma_dereg(self->fd, handle));
	rdma_buf_free(_metadata, self, &buf);
}

/* Bad input gets a clear error */
TEST_F_TIMEOUT(odp, input, TIMEOUT_S)
{
	struct p2ptest_rdma_dereg dereg = { .pad = 1 };
	struct p2ptest_rdma_xfer xfer = { .len = 1 };
	struct p2ptest_rdma_query query = { .len = 1 };
	const int fd = self->fd;
	struct p2ptest_rdma_page page;
	struct p2p_buf buf;
	unsigned char *end;
	__u32 handle;
	char c = 0;

	rdma_buf_init(_metadata, self, &buf, 2, BEFORE, MR_ODP_WRITE);
	end = buf.p + buf.len;
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, 0, MR_ODP, &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, ~0UL, MR_ODP, &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, (void *)~0UL, 2, MR_ODP, &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, 1, 1U << 31, &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, 1, P2PTEST_RDMA_MR_IMPLICIT,
				    &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, 1, MR_ODP |
				    P2PTEST_RDMA_MR_ATOMIC, &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, 1, P2PTEST_RDMA_MR_HUGETLB,
				    &handle));
	EXPECT_EQ(-EINVAL, rdma_reg(fd, buf.p, 1, MR_ODP |
				    P2PTEST_RDMA_MR_HUGETLB |
				    P2PTEST_RDMA_MR_IMPLICIT, &handle));
	EXPECT_EQ(-E2BIG, rdma_reg(fd, buf.p, LARGE + 1, MR_ODP, &handle));
	EXPECT_EQ(-E2BIG, rdma_reg(fd, buf.p, (1UL << 40) + 1, MR_ODP |
				   P2PTEST_RDMA_MR_IMPLICIT, &handle));
	EXPECT_EQ(-EFAULT, rdma_reg(fd, (void *)P2P_PAGE, 1, 0, &handle));
	EXPECT_EQ(-EFAULT, rdma_ioctl(fd, P2PTEST_RDMA_REG, (void *)1));
	EXPECT_EQ(-EFAULT, rdma_ioctl(fd, P2PTEST_RDMA_DEREG, (void *)1));
	EXPECT_EQ(-EFAULT, rdma_ioctl(fd, P2PTEST_RDMA_XFER, (void *)1));
	EXPECT_EQ(-EFAULT, rdma_ioctl(fd, P2PTEST_RDMA_FAULT, (void *)1));
	EXPECT_EQ(-EFAULT, rdma_ioctl(fd, P2PTEST_RDMA_QUERY, (void *)1));
	EXPECT_EQ(-EFAULT, rdma_ioctl(fd, P2PTEST_RDMA_REREG, (void *)1));
	EXPECT_EQ(-ENOTTY, rdma_ioctl(fd, P2PTEST_NIC_REG, &xfer));
	EXPECT_EQ(-ENOTTY, rdma_ioctl(fd, _IOWR(P2PTEST_RDMA_IOC_MAGIC, 2,
						char[8]), &xfer));

	/* A fault would take more pages than there are addresses */
	EXPECT_EQ(0, rdma_reg(fd, (void *)-0x100000L, 1, MR_ODP, &handle));
	EXPECT_EQ(-EFAULT, rdma_xfer(fd, handle, (void *)-0x100000L, &c, 1,
				     false, NULL));
	EXPECT_EQ(0, rdma_dereg(fd, handle));

	EXPECT_EQ(-EINVAL, rdma_xfer(fd, buf.handle, buf.p, &c, 0, false,
				     NULL));
	EXPECT_EQ(-EINVAL, rdma_xfer(fd, buf.handle, buf.p - 1, &c, 2, false,
				     NULL));
	EXPECT_EQ(-EINVAL, rdma_xfer(fd, buf.handle, end - 1, &c, 2, false,
				     NULL));
	EXPECT_EQ(-EINVAL, rdma_xfer(fd, buf.handle, buf.p + 1, &c, ~0UL, false,
				     NULL));
	EXPECT_EQ(-EFAULT, rdma_xfer(fd, buf.handle, buf.p, (void *)1, 1, false,
				     NULL));
	EXPECT_EQ(-EFAULT, rdma_xfer(fd, buf.handle, buf.p, (void *)-8192L, 1,
				     true, NULL));
	xfer.addr = (uintptr_t)buf.p;
	xfer.buf = (uintptr_t)&c;
	xfer.handle = buf.handle;
	xfer.pad = 1;
	EXPECT_EQ(-EINVAL, rdma_ioctl(fd, P2PTEST_RDMA_XFER, &xfer));
	xfer.pad = 0;
	xfer.flags = 1U << 31;
	EXPECT_EQ(-EINVAL, rdma_ioctl(fd, P2PTEST_RDMA_XFER, &xfer));

	EXPECT_EQ(-EINVAL, rdma_rereg(fd, buf.handle, MR_WRITE));
	EXPECT_EQ(-ENOENT, rdma_rereg(fd, buf.handle + 1, 0));

	EXPECT_EQ(-EINVAL, rdma_fault(fd, buf.handle, buf.p, 1, 1U << 31));
	EXPECT_EQ(-EINVAL, rdma_fault(fd, buf.handle, end, 1, 0));
	EXPECT_EQ(-ENOENT, rdma_fault(fd, buf.handle + 1, buf.p, 1, 0));
	EXPECT_EQ(-ENOENT, rdma_fault(fd, ~0U, buf.p, 1, 0));
	EXPECT_EQ(-EINVAL, rdma_query(fd, buf.handle, end, 1, &page, NULL));
	EXPECT_EQ(-EFAULT, rdma_query(fd, buf.handle, buf.p, 1, (void *)1,
				      NULL));
	query.addr = (uintptr_t)buf.p;
	query.handle = buf.handle;
	query.hold = 1001;
	EXPECT_EQ(-EINVAL, rdma_ioctl(fd, P2PTEST_RDMA_QUERY, &query));
	dereg.handle = buf.handle;
	EXPECT_EQ(-EINVAL, rdma_ioctl(fd, P2PTEST_RDMA_DEREG, &dereg));

	rdma_buf_read(_metadata, self, &buf, BEFORE);
	rdma_buf_free(_metadata, self, &buf);
}

/* A device whose driver is loaded with other parameters */

FIXTURE(odp_reload)
{
	RDMA_SELF rdma;
	bool reloaded;
};

FIXTURE_SETUP(odp_reload)
{
	odp_setup(_metadata, &self->rdma, NULL);
}

FIXTURE_TEARDOWN_PARENT(odp_reload)
{
	if (self->reloaded)
		EXPECT_EQ(0, p2p_driver_reload(RDMA_DRIVER, ""));
	odp_teardown(_metadata, &self->rdma, NULL);
}

/* A transfer is as large as max_transfer says, if it fits the device */
TEST_F_TIMEOUT(odp_reload, max_transfer, TIMEOUT_S)
{
	RDMA_SELF *rdma = &self->rdma;
	struct p2p_buf buf;
	__u64 start;

	close(rdma->fd);
	if (!p2p_driver_unload(_metadata, RDMA_DRIVER))
		return;
	self->reloaded = true;
	p2p_driver_refuses(_metadata, RDMA_DRIVER, "max_transfer=0");
	p2p_driver_refuses(_metadata, RDMA_DRIVER, "max_transfer=4097");

	/* Parts of a page that are neither alike nor aligned: five of them. */
	ASSERT_EQ(0, p2p_driver_reload(RDMA_DRIVER, "max_transfer=1000"));
	rdma->fd = p2p_dev_open(RDMA_DRIVER, 0);
	ASSERT_LE(0, rdma->fd);
	rdma_buf_init(_metadata, rdma, &buf, PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, rdma, &buf);
	start = p2p_now_ms();
	rdma_buf_read(_metadata, rdma, &buf, BEFORE);
	EXPECT_LE(buf.pages * 5 * 2 * TRANSFER_MS, p2p_now_ms() - start);
	rdma_buf_write(_metadata, rdma, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, rdma, &buf);
	close(rdma->fd);
}

TEST_HARNESS_MAIN
