// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: the data path
 *
 * A NIC reads and writes memory of a process by user address, wherever that
 * memory is. Pages in a GPU have to be reached there if there is a path, and
 * have to come home if there is none. The data must be right in all cases.
 *
 * This is the first of the programs that share p2p_fixture.h, among them:
 *
 *	hmm_p2p_test		the data path
 *	hmm_p2p_mm_test		permissions, and an address space that changes
 *	hmm_p2p_reason_test	why a page is, or is not, reached where it lies
 *	hmm_p2p_race_test	what changes while DMA is in flight
 *	hmm_p2p_lifetime_test	processes and devices that go away
 *	hmm_p2p_input_test	bad input
 *
 * They need the drivers of CONFIG_P2PTEST_GPU and CONFIG_P2PTEST_NIC, and QEMU
 * devices for them; tests are skipped without. For instance, with both below
 * one switch:
 *
 *	-machine q35 -icount shift=0,sleep=off
 *	-device pcie-root-port,id=rp,bus=pcie.0,chassis=1,slot=1
 *	-device x3130-upstream,id=up,bus=rp
 *	-device xio3130-downstream,id=dp0,bus=up,chassis=2,slot=2
 *	-device xio3130-downstream,id=dp1,bus=up,chassis=3,slot=3
 *	-object memory-backend-file,id=vram,share=on,mem-path=FILE,size=64M
 *	-device ivshmem-plain,memdev=vram,bus=dp0
 *	-device edu,dma_mask=0xffffffffffffffff,bus=dp1
 *
 * Environment:
 *
 *	P2PTEST_EXPECT	what the topology allows, so that the kernel's opinion
 *			is tested as well: bus_addr (as above), host_bridge,
 *			topology (no path) or none (no CONFIG_PCI_P2PDMA)
 *	P2PTEST_MODDIR	directory of p2ptest_nic.ko and test_hmm.ko, for tests
 *			that have to load one
 */
#include "p2p_fixture.h"

#define BIG	(6UL << 20)

/* Pages in VRAM, written and read by the NIC, read by the GPU and the CPU */
static void round_trip(struct __test_metadata *_metadata, P2P_SELF *self,
		       size_t pages)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	__u64 *locs;
	bool peer = p2p_peer_path(self->path);

	locs = calloc(pages, sizeof(*locs));
	ASSERT_NE(NULL, locs);
	p2p_buf_init(_metadata, self, &buf, pages, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf.p, buf.len, locs));
	p2p_vram_pattern(_metadata, self, locs, pages, BEFORE);

	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, pages,
			p2p_path_reason(self->path), &before);
	/* Without anybody's touch the bytes are in VRAM already */
	if (peer)
		p2p_vram_pattern(_metadata, self, locs, pages, AFTER);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	EXPECT_EQ(peer ? 0 : pages, p2p_moves(_metadata, &self->gpu, &before));

	if (peer)
		p2p_buf_gpu_read(_metadata, self, &buf, AFTER, pages);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(pages, p2p_moves(_metadata, &self->gpu, &before));
	p2p_buf_free(_metadata, self, &buf);
	free(locs);
}

TEST_F_TIMEOUT(p2p, one_page, TIMEOUT_S)
{
	round_trip(_metadata, self, 1);
}

TEST_F_TIMEOUT(p2p, big, TIMEOUT_S)
{
	round_trip(_metadata, self, BIG / P2P_PAGE);
}

/* Memory that was never in the GPU is none of its business */
TEST_F_TIMEOUT(p2p, ram, TIMEOUT_S)
{
	struct p2ptest_gpu_info before = p2p_info(_metadata, &self->gpu);
	struct p2p_stats stats;
	struct p2p_view view;
	struct p2p_buf buf;
	int i;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_stats_read(&stats));
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);

	EXPECT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_HOST]);
	EXPECT_EQ(buf.pages, view.reason[P2PTEST_REASON_NONE]);
	EXPECT_EQ(buf.pages, view.writable);
	EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
	if (self->has_p2p) {
		ASSERT_EQ(0, p2p_stats_since(&stats));
		for (i = 0; i < P2PTEST_REASON_MAX; i++)
			EXPECT_EQ(0U, stats.pages[i]);
	}
	p2p_buf_free(_metadata, self, &buf);
}

/* Bytes around the range are not the NIC's to touch, in either memory */
TEST_F_TIMEOUT(p2p, unaligned, TIMEOUT_S)
{
	static const struct {
		size_t pos, len;
	} ranges[] = {
		{ 0, 1 },
		{ 4095, 2 },
		{ 2047, 2 },
		{ 4000, 200 },
		{ 100, 3 * 4096 + 17 },
		{ 4096 + 2049, 4096 },
		{ 4 * 4096 - 1, 4097 },
	};
	unsigned char data[8 * 4096];
	struct p2ptest_gpu_info before;
	struct p2p_view view;
	struct p2p_buf buf;
	size_t i, pos, len, first, last;
	__u32 handle;

	for (i = 0; i < 2 * ARRAY_SIZE(ranges); i++) {
		bool in_vram = i & 1;

		pos = ranges[i / 2].pos;
		len = ranges[i / 2].len;
		first = pos / P2P_PAGE;
		last = (pos + len - 1) / P2P_PAGE;
		p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
		/* A region as unaligned as the transfer */
		ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p + pos, len,
					 P2PTEST_NIC_MR_WRITE, &handle));
		if (in_vram)
			p2p_buf_to_vram(_metadata, self, &buf);
		before = p2p_info(_metadata, &self->gpu);

		p2p_fill(data, AFTER, pos, len);
		EXPECT_EQ(0, p2p_nic_write(&self->nic, handle, buf.p + pos,
					   data, len, NULL));
		memset(data, 0, sizeof(data));
		EXPECT_EQ(0, p2p_nic_read(&self->nic, handle, buf.p + pos,
					  data, len, NULL));
		p2p_expect_pattern(_metadata, "NIC read", data, AFTER, pos,
				   len);
		EXPECT_EQ(sizeof(data) - len,
			  p2p_compare_byte(data + len, 0, sizeof(data) - len));
		ASSERT_EQ(0, p2p_nic_view(&self->nic, handle, buf.p + pos, len,
					  &view));
		if (in_vram && p2p_peer_path(self->path)) {
			EXPECT_EQ(last - first + 1, view.peer);
			EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
		} else {
			EXPECT_EQ(last - first + 1,
				  view.kind[P2PTEST_PAGE_HOST]);
		}
		/* One byte outside of the region is not in the region */
		EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, handle,
						buf.p + pos, data, len + 1,
						NULL));
		EXPECT_EQ(-EINVAL, p2p_nic_write(&self->nic, handle,
						 buf.p + pos + 1, data, len,
						 NULL));

		p2p_expect_pattern(_metadata, "in front", buf.p, BEFORE, 0,
				   pos);
		p2p_expect_pattern(_metadata, "range", buf.p + pos, AFTER, pos,
				   len);
		p2p_expect_pattern(_metadata, "behind", buf.p + pos + len,
				   BEFORE, pos + len, buf.len - pos - len);
		EXPECT_EQ(0, p2p_nic_dereg(&self->nic, handle));
		p2p_buf_free(_metadata, self, &buf);
	}
}

/* Half in RAM, half in VRAM, in one transfer */
TEST_F_TIMEOUT(p2p, half, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_nic_page pages[64];
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	size_t i;

	p2p_buf_init(_metadata, self, &buf, ARRAY_SIZE(pages), BEFORE);
	for (i = 0; i < buf.pages; i += 8)
		ASSERT_EQ(4, p2p_gpu_to_vram(&self->gpu, buf.p + i * P2P_PAGE,
					     4 * P2P_PAGE));
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages / 2, reason, &before);
	ASSERT_EQ(0, p2p_nic_query(&self->nic, buf.handle, buf.p, buf.len,
				   pages));
	for (i = 0; i < buf.pages; i++)
		EXPECT_EQ(i % 8 < 4 ? reason : P2PTEST_REASON_NONE,
			  pages[i].reason);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* Pages in two chunks of VRAM, so in two ranges of the BAR, in one fault */
TEST_F_TIMEOUT(p2p, two_ranges, TIMEOUT_S)
{
	const size_t chunk = self->info.chunk_size / P2P_PAGE;
	struct p2ptest_gpu_info before;
	struct p2p_buf first, buf;
	__u64 locs[8];

	/* The first chunk is filled up, except for half of the buffer */
	p2p_buf_init(_metadata, self, &first, chunk - ARRAY_SIZE(locs) / 2,
		     OTHER);
	p2p_buf_to_vram(_metadata, self, &first);
	p2p_buf_init(_metadata, self, &buf, ARRAY_SIZE(locs), BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf.p, buf.len, locs));
	ASSERT_NE(locs[3] / self->info.chunk_size,
		  locs[4] / self->info.chunk_size);

	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			p2p_path_reason(self->path), &before);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &first, OTHER);
	p2p_buf_free(_metadata, self, &buf);
	p2p_buf_free(_metadata, self, &first);
}

/*
 * Only some pages exist. The fault that makes the others must not take those
 * along that can stay where they are.
 */
TEST_F_TIMEOUT(p2p, sparse, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	size_t i;

	buf.pages = 64;
	buf.len = buf.pages * P2P_PAGE;
	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	for (i = 0; i < buf.pages; i++) {
		if (i % 3 == 0)
			continue;
		p2p_fill(buf.p + i * P2P_PAGE, BEFORE, 0, P2P_PAGE);
		if (i % 3 == 1)
			ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu,
						     buf.p + i * P2P_PAGE,
						     P2P_PAGE));
	}
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages / 3, reason, &before);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/*
 * 2 MiB of VRAM in one folio, mapped by one PMD entry; false if there are no
 * huge pages, and the test is skipped
 */
static bool huge_init(struct __test_metadata *_metadata, P2P_SELF *self,
		      struct p2p_buf *buf, __u64 *locs)
{
	size_t i;

	if (!p2p_buf_init_huge(_metadata, self, buf, BEFORE))
		return false;
	p2p_buf_to_vram(_metadata, self, buf);
	/* Still a PMD entry, or this would test nothing new */
	ASSERT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf->p));
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf->p, buf->len, locs));
	for (i = 0; i < buf->pages; i++)
		ASSERT_EQ(p2p_loc_offset(locs[0]) + i * P2P_PAGE,
			  p2p_loc_offset(locs[i]));
	return true;
}

TEST_F_TIMEOUT(p2p, thp, TIMEOUT_S)
{
	__u64 locs[P2P_HUGE / P2P_PAGE];
	struct p2ptest_gpu_info before;
	struct p2ptest_nic_page *pages;
	struct p2p_buf buf;
	size_t i;

	if (!huge_init(_metadata, self, &buf, locs))
		return;
	pages = calloc(buf.pages, sizeof(*pages));
	ASSERT_NE(NULL, pages);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, p2p_nic_query(&self->nic, buf.handle, buf.p, buf.len,
				   pages));
	if (p2p_peer_path(self->path)) {
		for (i = 0; i < buf.pages; i++) {
			EXPECT_EQ(p2p_peer_kind(self->path), pages[i].kind);
			EXPECT_EQ(1, pages[i].writable);
		}
		EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
		EXPECT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf.p));
		p2p_vram_pattern(_metadata, self, locs, buf.pages, AFTER);
	} else {
		for (i = 0; i < buf.pages; i++)
			EXPECT_EQ(P2PTEST_PAGE_HOST, pages[i].kind);
		EXPECT_EQ(buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	}
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
	free(pages);
}

/* A region that begins and ends inside of a folio, which is split later */
TEST_F_TIMEOUT(p2p, thp_inside, TIMEOUT_S)
{
	const size_t first = 101, n = 3;
	unsigned char data[3 * 4096];
	__u64 locs[P2P_HUGE / P2P_PAGE];
	struct p2ptest_gpu_info before;
	struct p2p_view view;
	struct p2p_buf buf;
	__u32 handle;

	if (!huge_init(_metadata, self, &buf, locs))
		return;
	before = p2p_info(_metadata, &self->gpu);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p + first * P2P_PAGE,
				 n * P2P_PAGE, P2PTEST_NIC_MR_WRITE, &handle));
	p2p_fill(data, AFTER, 0, sizeof(data));
	EXPECT_EQ(0, p2p_nic_write(&self->nic, handle,
				   buf.p + first * P2P_PAGE, data,
				   sizeof(data), NULL));
	if (p2p_peer_path(self->path)) {
		ASSERT_EQ(0, p2p_nic_view(&self->nic, handle,
					  buf.p + first * P2P_PAGE,
					  n * P2P_PAGE, &view));
		EXPECT_EQ(n, view.kind[p2p_peer_kind(self->path)]);
		EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
		p2p_vram_pattern(_metadata, self, locs + first, n, AFTER);
	}

	/* The rest of the folio still works after a part was unmapped */
	ASSERT_EQ(0, munmap(buf.p + P2P_HUGE / 2, P2P_HUGE / 2));
	p2p_fill(data, OTHER, 0, sizeof(data));
	EXPECT_EQ(0, p2p_nic_write(&self->nic, handle,
				   buf.p + first * P2P_PAGE, data,
				   sizeof(data), NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle,
					buf.p + P2P_HUGE / 2, data, 1, NULL));

	p2p_expect_pattern(_metadata, "in front", buf.p, BEFORE, 0,
			   first * P2P_PAGE);
	p2p_expect_pattern(_metadata, "range", buf.p + first * P2P_PAGE, OTHER,
			   0, n * P2P_PAGE);
	p2p_expect_pattern(_metadata, "behind",
			   buf.p + (first + n) * P2P_PAGE, BEFORE,
			   (first + n) * P2P_PAGE,
			   P2P_HUGE / 2 - (first + n) * P2P_PAGE);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, handle));
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(0, munmap(buf.p, P2P_HUGE / 2));
}

/*
 * 512 pages in a row, which are mapped at once. When one of them goes away, the
 * NIC still has the others.
 */
static void part_of_run(struct __test_metadata *_metadata, P2P_SELF *self,
			bool vram)
{
	const size_t last = P2P_HUGE / P2P_PAGE - 1, part = 101;
	const size_t others[] = { 0, part - 1, part + 1, last };
	unsigned char data[P2P_PAGE];
	struct p2ptest_nic_xfer xfer;
	struct p2p_buf buf;
	size_t i;

	if (!p2p_buf_init_huge(_metadata, self, &buf, BEFORE))
		return;
	/* khugepaged would move all pages into a huge one again, in 10 s */
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_NOHUGEPAGE));
	if (vram)
		p2p_buf_to_vram(_metadata, self, &buf);
	/* From now on each page has an entry of its own: one can go alone */
	ASSERT_EQ(0, mprotect(buf.p + part * P2P_PAGE, P2P_PAGE, PROT_READ));
	ASSERT_EQ(0, mprotect(buf.p + part * P2P_PAGE, P2P_PAGE,
			      PROT_READ | PROT_WRITE));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);

	ASSERT_EQ(0, madvise(buf.p + part * P2P_PAGE, P2P_PAGE,
			     MADV_DONTNEED));
	for (i = 0; i < sizeof(others) / sizeof(*others); i++) {
		const size_t pos = others[i] * P2P_PAGE;

		EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p + pos,
					  data, P2P_PAGE, &xfer));
		EXPECT_EQ(0U, xfer.faults);
		p2p_expect_pattern(_metadata, "page beside", data, AFTER, pos,
				   P2P_PAGE);
	}
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle,
				  buf.p + part * P2P_PAGE, data, P2P_PAGE,
				  &xfer));
	EXPECT_EQ(1U, xfer.faults);
	EXPECT_EQ(P2P_PAGE, p2p_compare_byte(data, 0, P2P_PAGE));
	p2p_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(p2p, part_of_run_vram, TIMEOUT_S)
{
	part_of_run(_metadata, self, true);
}

TEST_F_TIMEOUT(p2p, part_of_run_host, TIMEOUT_S)
{
	part_of_run(_metadata, self, false);
}

/* A huge page for which VRAM has room, but not in one piece, moves in pages */
TEST_F_TIMEOUT(p2p, thp_no_room, TIMEOUT_S)
{
	const size_t pages = self->info.vram_size / P2P_PAGE;
	unsigned char *small;
	struct p2p_buf buf;
	size_t i, n;
	__u64 *locs;

	locs = calloc(pages, sizeof(*locs));
	ASSERT_NE(NULL, locs);
	small = p2p_alloc(pages * P2P_PAGE);
	ASSERT_NE(NULL, small);
	for (i = 0; i < pages; i++)
		small[i * P2P_PAGE] = 1;
	ASSERT_EQ((long)pages, p2p_gpu_to_vram(&self->gpu, small,
					       pages * P2P_PAGE));
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, small, pages * P2P_PAGE, locs));
	/* Of each 2 MiB, the first page stays */
	for (i = 0; i < pages; i += n) {
		ASSERT_EQ(0U, p2p_loc_offset(locs[i]) % P2P_HUGE);
		for (n = 1; i + n < pages; n++)
			if (!(p2p_loc_offset(locs[i + n]) % P2P_HUGE))
				break;
		ASSERT_EQ(0, munmap(small + (i + 1) * P2P_PAGE,
				    (n - 1) * P2P_PAGE));
	}
	ASSERT_EQ(0, p2p_gpu_wait_used(&self->gpu,
				       self->info.vram_size / P2P_HUGE));

	if (!p2p_buf_init_huge(_metadata, self, &buf, BEFORE))
		return;
	p2p_buf_to_vram(_metadata, self, &buf);
	EXPECT_EQ(0, p2p_huge_bytes(buf.p));
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
	ASSERT_EQ(0, munmap(small, pages * P2P_PAGE));
	free(locs);
}

/* GPU and NIC see each other's writes, in place */
TEST_F_TIMEOUT(p2p, gpu_coherent, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	unsigned char data[8 * 4096];
	struct p2p_buf buf;
	long in_vram;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);

	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	in_vram = p2p_peer_path(self->path) ? buf.pages : 0;
	p2p_fill(data, AFTER, 0, buf.len);
	EXPECT_EQ(in_vram, p2p_gpu_write(&self->gpu, buf.p, data, buf.len));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_nic_write(_metadata, self, &buf, OTHER);
	p2p_buf_gpu_read(_metadata, self, &buf, OTHER, in_vram);
	/* Some bytes across a page boundary */
	p2p_fill(data, AFTER, 4000, 200);
	EXPECT_EQ(in_vram ? 2 : 0,
		  p2p_gpu_write(&self->gpu, buf.p + 4000, data, 200));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	p2p_expect_pattern(_metadata, "in front", data, OTHER, 0, 4000);
	p2p_expect_pattern(_metadata, "range", data + 4000, AFTER, 4000, 200);
	p2p_expect_pattern(_metadata, "behind", data + 4200, OTHER, 4200,
			   buf.len - 4200);

	if (in_vram)
		EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
	p2p_buf_free(_metadata, self, &buf);
}

/* Pages may move between any two transfers */
TEST_F_TIMEOUT(p2p, back_and_forth, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_gpu_info before;
	struct p2p_view view;
	struct p2p_buf buf;
	__u64 seed = AFTER;
	int i;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	for (i = 0; i < 4; i++) {
		p2p_buf_to_vram(_metadata, self, &buf);
		before = p2p_info(_metadata, &self->gpu);
		p2p_buf_nic_write(_metadata, self, &buf, ++seed);
		p2p_buf_reached(_metadata, self, &buf, buf.pages, reason,
				&before);

		if (p2p_peer_path(self->path))
			ASSERT_EQ((long)buf.pages,
				  p2p_gpu_to_host(&self->gpu, buf.p, buf.len));
		/* The NIC dropped the page, and asks again when it needs it */
		if (p2p_peer_path(self->path)) {
			ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle,
						  buf.p, buf.len, &view));
			EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_UNMAPPED]);
		}
		p2p_buf_nic_read(_metadata, self, &buf, seed);
		p2p_buf_nic_write(_metadata, self, &buf, ++seed);
		ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p,
					  buf.len, &view));
		EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_HOST]);
		p2p_buf_cpu_read(_metadata, &buf, seed);
	}
	p2p_buf_free(_metadata, self, &buf);
}

/* Looking does not move, fault or forget anything */
TEST_F_TIMEOUT(p2p, query, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_nic_page pages[8];
	struct p2ptest_gpu_info before;
	struct p2p_stats stats;
	struct p2p_view view;
	struct p2p_buf buf;
	int i;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_stats_read(&stats));

	/* Nothing has been resolved yet */
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_UNMAPPED]);
	EXPECT_EQ(buf.pages, view.reason[P2PTEST_REASON_NONE]);
	EXPECT_EQ(0U, view.writable);
	EXPECT_EQ((long)buf.pages,
		  p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
	if (self->has_p2p) {
		ASSERT_EQ(0, p2p_stats_since(&stats));
		for (i = 0; i < P2PTEST_REASON_MAX; i++)
			EXPECT_EQ(0U, stats.pages[i]);
	}

	/* Part of the pages, and a part of the region, rounded to pages */
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	memset(pages, 0xff, sizeof(pages));
	ASSERT_EQ(0, p2p_nic_query(&self->nic, buf.handle,
				   buf.p + P2P_PAGE + 5, P2P_PAGE, pages));
	EXPECT_EQ(reason, pages[0].reason);
	EXPECT_EQ(reason, pages[1].reason);
	EXPECT_EQ(0xff, pages[2].kind);

	/* The CPU takes one page home: unmapped, but the reason is kept */
	if (p2p_peer_path(self->path)) {
		p2p_expect_pattern(_metadata, "CPU", buf.p + P2P_PAGE, BEFORE,
				   P2P_PAGE, P2P_PAGE);
		ASSERT_EQ(0, p2p_nic_query(&self->nic, buf.handle, buf.p,
					   buf.len, pages));
		EXPECT_EQ(P2PTEST_PAGE_UNMAPPED, pages[1].kind);
		EXPECT_EQ(reason, pages[1].reason);
		EXPECT_EQ(p2p_peer_kind(self->path), pages[0].kind);
		EXPECT_EQ(p2p_peer_kind(self->path), pages[2].kind);
	}
	p2p_buf_free(_metadata, self, &buf);
}

/* A region that does not ask for peer addresses: today's behaviour */
TEST_F_TIMEOUT(p2p, no_p2p, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_stats stats;
	struct p2p_buf buf;
	int i;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE | P2PTEST_NIC_MR_NO_P2P,
				 &buf.handle));
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_stats_read(&stats));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, 0, P2PTEST_REASON_BUS_ADDR,
			&(struct p2ptest_gpu_info){
				.migrated_in = before.migrated_in,
				.migrated_out = before.migrated_out + buf.pages,
			});
	if (self->has_p2p) {
		ASSERT_EQ(0, p2p_stats_since(&stats));
		for (i = 0; i < P2PTEST_REASON_MAX; i++)
			EXPECT_EQ(0U, stats.pages[i]);
	}
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_HARNESS_MAIN
