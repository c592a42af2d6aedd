// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: the data path
 *
 * A NIC reads and writes memory of a process by user address, wherever that
 * memory is, and whatever the process does with its address space between two
 * transfers. What is in a GPU has to be reached there, if there is a path, and
 * has to come home, if there is none. In all cases the data must be right, and
 * permissions must hold.
 *
 * Needs /dev/p2ptest_gpu0 and /dev/p2ptest_nic0 (CONFIG_P2PTEST_*, in QEMU);
 * see p2p_fixture.h about emulated time. Reasons of a fallback are tested in
 * hmm_p2p_reason_test.c, things that happen at the same time, and devices and
 * processes that go away, in hmm_p2p_lifetime_test.c.
 */
#include "p2p_fixture.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/ioctl.h>

/* Seeds: what was there before, and what each writer writes */
#define BEFORE	100
#define AFTER	200
#define OTHER	300

#define BIG	(16UL << 20)

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

/* 2 MiB in one folio, mapped by one PMD entry, or SKIP */
static void huge_init(struct __test_metadata *_metadata, P2P_SELF *self,
		      struct p2p_buf *buf, __u64 *locs)
{
	size_t i;

	buf->len = P2P_HUGE;
	buf->pages = P2P_HUGE / P2P_PAGE;
	buf->p = p2p_alloc_huge(buf->len);
	ASSERT_NE(NULL, buf->p);
	p2p_fill(buf->p, BEFORE, 0, buf->len);
	if (p2p_huge_bytes(buf->p) != (long)P2P_HUGE)
		SKIP(_exit(KSFT_SKIP), "the kernel gives no huge pages");
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
				 P2PTEST_NIC_MR_WRITE, &buf->handle));
	p2p_buf_to_vram(_metadata, self, buf);
	/* Still a PMD entry, or this would test nothing new */
	ASSERT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf->p));
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf->p, buf->len, locs));
	for (i = 0; i < buf->pages; i++)
		ASSERT_EQ(p2p_loc_offset(locs[0]) + i * P2P_PAGE,
			  p2p_loc_offset(locs[i]));
}

TEST_F_TIMEOUT(p2p, thp, TIMEOUT_S)
{
	__u64 locs[P2P_HUGE / P2P_PAGE];
	struct p2ptest_gpu_info before;
	struct p2ptest_nic_page *pages;
	struct p2p_buf buf;
	size_t i;

	huge_init(_metadata, self, &buf, locs);
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

	huge_init(_metadata, self, &buf, locs);
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

	/* What is left of the folio after a part was unmapped still works */
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
		/* The NIC was told, and asks again when it needs the page */
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

/* Permission */

/* The NIC may read what the process may read, and that in place */
TEST_F_TIMEOUT(p2p, mprotect_read, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_gpu_info before;
	struct p2ptest_nic_xfer xfer;
	unsigned char data[4 * 4096];
	struct p2p_view view;
	struct p2p_buf buf;
	int i;

	p2p_fill(data, AFTER, 0, sizeof(data));
	/* The NIC has, or has not, a writable address when the right is lost */
	for (i = 0; i < 2; i++) {
		p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
		p2p_buf_to_vram(_metadata, self, &buf);
		before = p2p_info(_metadata, &self->gpu);
		if (i)
			p2p_buf_nic_write(_metadata, self, &buf, BEFORE);
		ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
		EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, buf.handle, buf.p,
						data, buf.len, &xfer));
		EXPECT_EQ(0U, xfer.done);
		p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
		ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p,
					  buf.len, &view));
		EXPECT_EQ(0U, view.writable);
		if (p2p_peer_path(self->path)) {
			EXPECT_EQ(buf.pages, view.peer);
			EXPECT_EQ(buf.pages, view.reason[reason]);
			EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
		}
		p2p_buf_cpu_read(_metadata, &buf, BEFORE);

		/* A part of the range: what comes before it is written */
		ASSERT_EQ(0, mprotect(buf.p, 2 * P2P_PAGE,
				      PROT_READ | PROT_WRITE));
		EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, buf.handle, buf.p,
						data, buf.len, &xfer));
		EXPECT_LE(xfer.done, 2 * P2P_PAGE);
		p2p_expect_pattern(_metadata, "written", buf.p, AFTER, 0,
				   xfer.done);
		p2p_expect_pattern(_metadata, "protected",
				   buf.p + 2 * P2P_PAGE, BEFORE, 2 * P2P_PAGE,
				   2 * P2P_PAGE);

		ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ | PROT_WRITE));
		p2p_buf_nic_write(_metadata, self, &buf, OTHER);
		p2p_buf_cpu_read(_metadata, &buf, OTHER);
		p2p_buf_free(_metadata, self, &buf);
	}
}

TEST_F_TIMEOUT(p2p, mprotect_none, TIMEOUT_S)
{
	unsigned char data[2 * 4096];
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 2, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_NONE));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					buf.len, NULL));
	EXPECT_GT(0, p2p_nic_write(&self->nic, buf.handle, buf.p, data,
				   buf.len, NULL));
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ | PROT_WRITE));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A region that was registered for reading, of memory that may be written */
TEST_F_TIMEOUT(p2p, region_read_only, TIMEOUT_S)
{
	struct p2ptest_nic_xfer xfer;
	unsigned char data[2 * 4096];
	struct p2p_buf buf;
	__u32 handle;

	p2p_buf_init(_metadata, self, &buf, 2, BEFORE);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len, 0, &handle));
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_fill(data, AFTER, 0, sizeof(data));
	EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, handle, buf.p, data,
					buf.len, &xfer));
	EXPECT_EQ(0U, xfer.done);
	EXPECT_EQ(0, p2p_nic_read(&self->nic, handle, buf.p, data, buf.len,
				  NULL));
	p2p_expect_pattern(_metadata, "NIC read", data, BEFORE, 0, buf.len);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, handle));
	p2p_buf_free(_metadata, self, &buf);
}

/* Another process: a region, and its number, are of no use to it */
static void intruder(struct __test_metadata *_metadata, P2P_SELF *self,
		     struct p2p_buf *buf)
{
	unsigned char data[2 * 4096];
	struct p2ptest_nic_page pages[2];
	struct p2ptest_nic_xfer xfer;
	struct p2p_nic own;
	__u32 handle;

	p2p_fill(data, OTHER, 0, sizeof(data));
	EXPECT_EQ(-EPERM, p2p_nic_read(&self->nic, buf->handle, buf->p, data,
				       buf->len, &xfer));
	EXPECT_EQ(0U, xfer.done);
	p2p_expect_pattern(_metadata, "nothing", data, OTHER, 0, sizeof(data));
	EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, buf->handle, buf->p, data,
					buf->len, &xfer));
	EXPECT_EQ(0U, xfer.done);
	EXPECT_EQ(-EPERM, p2p_nic_query(&self->nic, buf->handle, buf->p,
					buf->len, pages));
	EXPECT_EQ(-EPERM, p2p_nic_dereg(&self->nic, buf->handle));

	ASSERT_EQ(0, p2p_nic_open(&own, 0));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&own, buf->handle, buf->p, data,
					buf->len, NULL));
	/* The parent unmapped this: a child that registers it has none either */
	EXPECT_EQ(0, p2p_nic_reg(&own, buf->p + buf->len, P2P_PAGE, 0,
				 &handle));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&own, handle, buf->p + buf->len, data,
					1, NULL));
	p2p_nic_close(&own);
}

TEST_F_TIMEOUT(p2p, second_process, TIMEOUT_S)
{
	struct p2p_buf buf;
	int status;
	pid_t pid;

	p2p_buf_init(_metadata, self, &buf, 3, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, munmap(buf.p + 2 * P2P_PAGE, P2P_PAGE));
	buf.len = 2 * P2P_PAGE;
	buf.pages = 2;
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		intruder(_metadata, self, &buf);
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A number names a region on the file that it was registered on */
TEST_F_TIMEOUT(p2p, handles, TIMEOUT_S)
{
	struct p2ptest_nic_page page;
	struct p2p_nic second;
	struct p2p_buf buf;
	char c;

	p2p_buf_init(_metadata, self, &buf, 1, BEFORE);
	ASSERT_EQ(0, p2p_nic_open(&second, 0));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&second, buf.handle, buf.p, &c, 1,
					NULL));
	EXPECT_EQ(-ENOENT, p2p_nic_query(&second, buf.handle, buf.p, 1, &page));
	EXPECT_EQ(-ENOENT, p2p_nic_dereg(&second, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&self->nic, buf.handle + 1000, buf.p,
					&c, 1, NULL));
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	p2p_nic_close(&second);
	munmap(buf.p, buf.len);
}

/* The address space changes */

/* After unmap and remap the NIC sees the new memory, and never the old */
TEST_F_TIMEOUT(p2p, remap, TIMEOUT_S)
{
	struct p2p_buf buf, reuse;
	unsigned char data[4 * 4096];
	size_t used;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	/* Before the address of the other one is free to be given out */
	p2p_buf_init(_metadata, self, &reuse, 64, OTHER);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	used = p2p_gpu_resident(&self->gpu, buf.p, buf.len);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0))
		TH_LOG("%zu pages were used", used);
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					buf.len, NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_write(&self->nic, buf.handle, buf.p, data,
					 buf.len, NULL));

	/* Somebody else gets the old pages of VRAM, and has to keep them */
	p2p_buf_to_vram(_metadata, self, &reuse);
	ASSERT_EQ(buf.p, mmap(buf.p, buf.len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	p2p_buf_nic_write(_metadata, self, &buf, BEFORE + 1);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE + 1);
	p2p_fill(buf.p, BEFORE + 2, 0, buf.len);
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE + 2);
	p2p_buf_gpu_read(_metadata, self, &reuse, OTHER, reuse.pages);
	p2p_buf_cpu_read(_metadata, &reuse, OTHER);
	p2p_buf_free(_metadata, self, &reuse);
	p2p_buf_free(_metadata, self, &buf);
}

/* MADV_DONTNEED: the old contents are gone for the NIC as well */
TEST_F_TIMEOUT(p2p, dontneed, TIMEOUT_S)
{
	unsigned char data[2 * 4096];
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 2, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	EXPECT_EQ(buf.len, p2p_compare_byte(data, 0, buf.len));
	p2p_buf_nic_write(_metadata, self, &buf, OTHER);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	p2p_buf_free(_metadata, self, &buf);
}

/* mremap() moves the entries, not the pages: the new address is as good */
TEST_F_TIMEOUT(p2p, mremap, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	unsigned char *to;
	__u32 old;
	char c;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	to = p2p_alloc(buf.len);
	ASSERT_NE(NULL, to);
	ASSERT_EQ(to, mremap(buf.p, buf.len, buf.len,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	old = buf.handle;
	buf.p = to;
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			p2p_path_reason(self->path), &before);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, old));
	p2p_buf_free(_metadata, self, &buf);
}

/* What was never touched is zero, and not what VRAM held before */
TEST_F_TIMEOUT(p2p, hole, TIMEOUT_S)
{
	unsigned char data[8 * 4096];
	struct p2p_buf buf;
	size_t i;
	long n;

	/* Leave something in VRAM that must not be seen */
	p2p_buf_init(_metadata, self, &buf, 64, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_free(_metadata, self, &buf);

	/* Pages 0 to 3 are holes, 4 to 7 are the zero page */
	buf.pages = 8;
	buf.len = buf.pages * P2P_PAGE;
	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	EXPECT_EQ(4 * P2P_PAGE,
		  p2p_compare_byte(buf.p + 4 * P2P_PAGE, 0, 4 * P2P_PAGE));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	n = p2p_gpu_to_vram(&self->gpu, buf.p, buf.len);
	EXPECT_LT(0, n);
	EXPECT_EQ(n, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	memset(data, 1, sizeof(data));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	EXPECT_EQ(buf.len, p2p_compare_byte(data, 0, buf.len));

	/* A write of page 1 and of page 5 does not show in others */
	p2p_fill(data, AFTER, 0, P2P_PAGE);
	for (i = 1; i < 8; i += 4)
		EXPECT_EQ(0, p2p_nic_write(&self->nic, buf.handle,
					   buf.p + i * P2P_PAGE, data,
					   P2P_PAGE, NULL));
	for (i = 0; i < 8; i++) {
		if (i % 4 == 1)
			p2p_expect_pattern(_metadata, "page",
					   buf.p + i * P2P_PAGE, AFTER, 0,
					   P2P_PAGE);
		else
			EXPECT_EQ(P2P_PAGE,
				  p2p_compare_byte(buf.p + i * P2P_PAGE, 0,
						   P2P_PAGE));
	}
	p2p_buf_free(_metadata, self, &buf);
}

/* Holes that the NIC itself fills, without a GPU in sight */
TEST_F_TIMEOUT(p2p, hole_ram, TIMEOUT_S)
{
	unsigned char data[2 * 4096];
	struct p2p_buf buf = { .pages = 2, .len = 2 * P2P_PAGE };

	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	memset(data, 1, sizeof(data));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	EXPECT_EQ(buf.len, p2p_compare_byte(data, 0, buf.len));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* Memory of a file cannot go to the GPU, but the NIC reaches it */
TEST_F_TIMEOUT(p2p, shared_file, TIMEOUT_S)
{
	struct p2p_buf buf = { .pages = 4, .len = 4 * P2P_PAGE };
	int fd = memfd_create("p2pdma", MFD_CLOEXEC);

	if (fd < 0)
		SKIP(return, "no memfd");
	ASSERT_EQ(0, ftruncate(fd, buf.len));
	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf.p);
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	EXPECT_EQ(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
	close(fd);
}

/* Freed VRAM holds nobody's data any more */
TEST_F_TIMEOUT(p2p, poison, TIMEOUT_S)
{
	const unsigned char *vram;
	__u64 locs[16];
	struct p2p_buf buf;
	size_t i, len;

	vram = p2p_vram_map(self->gpu.id, &len);
	if (!vram)
		SKIP(return, "the kernel does not show the BAR");
	p2p_buf_init(_metadata, self, &buf, ARRAY_SIZE(locs), BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf.p, buf.len, locs));
	p2p_vram_pattern(_metadata, self, locs, buf.pages, BEFORE);
	/* Half of them go home, the other half are thrown away */
	ASSERT_EQ(8, p2p_gpu_to_host(&self->gpu, buf.p, 8 * P2P_PAGE));
	p2p_expect_pattern(_metadata, "home", buf.p, BEFORE, 0, 8 * P2P_PAGE);
	p2p_buf_free(_metadata, self, &buf);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	for (i = 0; i < ARRAY_SIZE(locs); i++)
		EXPECT_EQ(P2P_PAGE,
			  p2p_compare_byte(vram + p2p_loc_offset(locs[i]),
					   P2P_POISON, P2P_PAGE));
	munmap((void *)vram, len);
}

/* Copy on write */

enum writer { BY_CPU, BY_NIC, BY_GPU };

FIXTURE(p2p_cow)
{
	P2P_SELF p2p;
};

FIXTURE_VARIANT(p2p_cow)
{
	enum writer writer;
	bool child;	/* writes */
	bool mapped;	/* the NIC had a writable address before the fork */
};

FIXTURE_VARIANT_ADD(p2p_cow, parent_cpu) { BY_CPU, false, true };
FIXTURE_VARIANT_ADD(p2p_cow, parent_nic) { BY_NIC, false, false };
FIXTURE_VARIANT_ADD(p2p_cow, parent_nic_mapped) { BY_NIC, false, true };
FIXTURE_VARIANT_ADD(p2p_cow, parent_gpu) { BY_GPU, false, true };
FIXTURE_VARIANT_ADD(p2p_cow, child_cpu) { BY_CPU, true, true };
FIXTURE_VARIANT_ADD(p2p_cow, child_nic) { BY_NIC, true, true };
FIXTURE_VARIANT_ADD(p2p_cow, child_gpu) { BY_GPU, true, true };

FIXTURE_SETUP(p2p_cow)
{
	p2p_setup(_metadata, &self->p2p, NULL);
}

FIXTURE_TEARDOWN_PARENT(p2p_cow)
{
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* One of the two writes, by whatever it takes */
static void cow_write(struct __test_metadata *_metadata, P2P_SELF *self,
		      enum writer writer, const struct p2p_buf *buf)
{
	void *data = malloc(buf->len);
	struct p2p_nic nic;
	__u32 handle;

	ASSERT_NE(NULL, data);
	p2p_fill(data, AFTER, 0, buf->len);
	switch (writer) {
	case BY_CPU:
		memcpy(buf->p, data, buf->len);
		break;
	case BY_GPU:
		EXPECT_LE(0, p2p_gpu_write(&self->gpu, buf->p, data, buf->len));
		break;
	case BY_NIC:
		/* A file and a region of its own, also in the child */
		ASSERT_EQ(0, p2p_nic_open(&nic, 0));
		ASSERT_EQ(0, p2p_nic_reg(&nic, buf->p, buf->len,
					 P2PTEST_NIC_MR_WRITE, &handle));
		EXPECT_EQ(0, p2p_nic_write(&nic, handle, buf->p, data, buf->len,
					   NULL));
		p2p_nic_close(&nic);
		break;
	}
	free(data);
}

static void expect_child(struct __test_metadata *_metadata, P2P_SELF *self,
			 const struct p2p_buf *buf, __u64 seed)
{
	void *data = malloc(buf->len);
	struct p2p_nic nic;
	__u32 handle;

	/* By NIC first: the CPU brings pages home */
	ASSERT_NE(NULL, data);
	ASSERT_EQ(0, p2p_nic_open(&nic, 0));
	ASSERT_EQ(0, p2p_nic_reg(&nic, buf->p, buf->len, 0, &handle));
	EXPECT_EQ(0, p2p_nic_read(&nic, handle, buf->p, data, buf->len, NULL));
	p2p_expect_pattern(_metadata, "child's NIC read", data, seed, 0,
			   buf->len);
	EXPECT_LE(0, p2p_gpu_read(&self->gpu, buf->p, data, buf->len));
	p2p_expect_pattern(_metadata, "child's GPU read", data, seed, 0,
			   buf->len);
	p2p_expect_pattern(_metadata, "child's CPU read", buf->p, seed, 0,
			   buf->len);
	p2p_nic_close(&nic);
	free(data);
}

/* Whoever writes, the other one keeps what was there at the fork */
TEST_F_TIMEOUT(p2p_cow, keeps, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	int to_child[2], status;
	pid_t pid;
	char c;

	p2p_buf_init(_metadata, p2p, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->mapped)
		p2p_buf_nic_write(_metadata, p2p, &buf, BEFORE);
	ASSERT_EQ(0, pipe(to_child));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		if (variant->child)
			cow_write(_metadata, p2p, variant->writer, &buf);
		else
			ASSERT_EQ(1, read(to_child[0], &c, 1));
		expect_child(_metadata, p2p, &buf,
			     variant->child ? AFTER : BEFORE);
		_exit(0);
	}
	if (!variant->child) {
		cow_write(_metadata, p2p, variant->writer, &buf);
		ASSERT_EQ(1, write(to_child[1], "", 1));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	p2p_buf_nic_read(_metadata, p2p, &buf,
			 variant->child ? BEFORE : AFTER);
	p2p_buf_cpu_read(_metadata, &buf, variant->child ? BEFORE : AFTER);

	/* And the region is as good as before */
	p2p_buf_nic_write(_metadata, p2p, &buf, OTHER);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	p2p_buf_free(_metadata, p2p, &buf);
}

/* Reading what is shared after a fork needs no copy and no way home */
TEST_F_TIMEOUT(p2p, fork_read, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_gpu_info before;
	struct p2p_view view;
	struct p2p_buf buf;
	int to_child[2], status;
	pid_t pid;
	char c;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, pipe(to_child));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		expect_child(_metadata, self, &buf, BEFORE);
		_exit(0);
	}
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_reached(_metadata, self, &buf, buf.pages, reason, &before);
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	if (p2p_peer_path(self->path))
		EXPECT_EQ(0U, view.writable);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	p2p_buf_free(_metadata, self, &buf);
}

/* Bad input: a clear error, and nothing changes */

TEST_F_TIMEOUT(p2p, bad_region, TIMEOUT_S)
{
	const int fd = self->nic.fd;
	struct p2ptest_nic_dereg dereg = { .handle = 1, .pad = 1 };
	struct p2ptest_nic_reg reg;
	struct p2p_buf buf;
	__u32 handle;
	char c;

	p2p_buf_init(_metadata, self, &buf, 1, BEFORE);
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, buf.p, 0, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, buf.p, ~0UL, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, (void *)~0UL, 2, 0,
				       &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, buf.p, 1, 1U << 31,
				       &handle));
	/* Kernel addresses: if they can be registered, it is of no use */
	if (!p2p_nic_reg(&self->nic, (void *)(~0UL << 32), P2P_PAGE, 0,
			 &handle)) {
		EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, handle,
						(void *)(~0UL << 32), &c, 1,
						NULL));
		EXPECT_EQ(0, p2p_nic_dereg(&self->nic, handle));
	}

	reg = (struct p2ptest_nic_reg){ .addr = (uintptr_t)buf.p, .len = 1 };
	EXPECT_EQ(-1, ioctl(fd, _IOWR(P2PTEST_NIC_IOC_MAGIC, 0, char), &reg));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, _IOWR(P2PTEST_NIC_IOC_MAGIC, 99,
				      struct p2ptest_nic_reg), &reg));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_INFO, &reg));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_REG, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_DEREG, &dereg));
	EXPECT_EQ(EINVAL, errno);

	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_free(_metadata, self, &buf);
}

/* Memory that does not exist yet may be registered: it is never pinned */
TEST_F_TIMEOUT(p2p, unmapped_region, TIMEOUT_S)
{
	struct p2p_buf buf = { .pages = 2, .len = 2 * P2P_PAGE };
	char c = 1;

	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_write(&self->nic, buf.handle, buf.p, &c, 1,
					 NULL));
	ASSERT_EQ(buf.p, mmap(buf.p, buf.len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(p2p, bad_transfer, TIMEOUT_S)
{
	const int fd = self->nic.fd;
	struct p2ptest_nic_query query;
	struct p2ptest_nic_page pages[4];
	struct p2ptest_nic_xfer xfer;
	struct p2p_buf buf;
	char data[64];
	char *end;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	end = (char *)buf.p + buf.len;
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, buf.p, data, 0,
					NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, buf.p - 1,
					data, 2, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, end - 1, data,
					2, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, end, data, 1,
					NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, buf.p + 1,
					data, ~0UL, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, (void *)~0UL,
					data, 2, NULL));
	/* The other buffer of a transfer is the caller's problem as well */
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p,
					(void *)1, 1, NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_write(&self->nic, buf.handle, buf.p,
					 (void *)1, 1, NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p,
					(void *)(~0UL << 32), 1, NULL));

	xfer = (struct p2ptest_nic_xfer){
		.addr = (uintptr_t)buf.p, .len = 1, .buf = (uintptr_t)data,
		.handle = buf.handle, .flags = 1U << 31,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_XFER, &xfer));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_XFER, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, _IOWR(P2PTEST_NIC_IOC_MAGIC, 2, char[8]),
			    &xfer));
	EXPECT_EQ(ENOTTY, errno);

	EXPECT_EQ(-EINVAL, p2p_nic_query(&self->nic, buf.handle, buf.p, 0,
					 pages));
	EXPECT_EQ(-EINVAL, p2p_nic_query(&self->nic, buf.handle, end, 1,
					 pages));
	EXPECT_EQ(-EINVAL, p2p_nic_query(&self->nic, buf.handle, buf.p, ~0UL,
					 pages));
	EXPECT_EQ(-EFAULT, p2p_nic_query(&self->nic, buf.handle, buf.p,
					 buf.len, (void *)1));
	query = (struct p2ptest_nic_query){
		.addr = (uintptr_t)buf.p, .len = 1, .pages = (uintptr_t)pages,
		.handle = buf.handle, .pad = 1,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_QUERY, &query));
	EXPECT_EQ(EINVAL, errno);

	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(p2p, bad_gpu, TIMEOUT_S)
{
	const int fd = self->gpu.fd;
	const __u64 size = self->info.vram_size;
	const __u64 chunk = self->info.chunk_size;
	struct p2ptest_gpu_migrate migrate;
	struct p2ptest_gpu_access access;
	struct p2ptest_gpu_info info;
	struct p2p_buf buf;
	__u64 locs[4];
	char data[64];
	__u32 two = 2;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p, 0));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p + 1, P2P_PAGE));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p, P2P_PAGE + 1));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p,
					   ~(P2P_PAGE - 1)));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_host(&self->gpu, buf.p, 0));
	migrate = (struct p2ptest_gpu_migrate){
		.addr = (uintptr_t)buf.p, .len = P2P_PAGE, .dir = 2,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_MIGRATE, &migrate));
	EXPECT_EQ(EINVAL, errno);
	migrate.dir = P2PTEST_GPU_TO_VRAM;
	migrate.pad = 1;
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_MIGRATE, &migrate));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_MIGRATE, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_INFO, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_REG, &info));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, _IOR(P2PTEST_GPU_IOC_MAGIC, 0, char), &info));
	EXPECT_EQ(ENOTTY, errno);

	EXPECT_EQ(-EINVAL, p2p_gpu_read(&self->gpu, buf.p, data, 0));
	EXPECT_EQ(-EINVAL, p2p_gpu_read(&self->gpu, buf.p, data, ~0UL));
	EXPECT_EQ(-EFAULT, p2p_gpu_read(&self->gpu, buf.p, (void *)1, 1));
	EXPECT_EQ(-EFAULT, p2p_gpu_write(&self->gpu, buf.p, (void *)1, 1));
	access = (struct p2ptest_gpu_access){
		.addr = (uintptr_t)buf.p, .len = 1, .buf = (uintptr_t)data,
		.flags = 1U << 31,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_ACCESS, &access));
	EXPECT_EQ(EINVAL, errno);
	access.flags = 0;
	access.pad = 1;
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_ACCESS, &access));
	EXPECT_EQ(EINVAL, errno);

	EXPECT_EQ(-EINVAL, p2p_gpu_lookup(&self->gpu, buf.p, 0, locs));
	EXPECT_EQ(-EINVAL, p2p_gpu_lookup(&self->gpu, buf.p + 1, P2P_PAGE,
					  locs));
	EXPECT_EQ(-EFAULT, p2p_gpu_lookup(&self->gpu, buf.p, P2P_PAGE,
					  (void *)1));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, 1, chunk));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, 0, 1));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, 0, size + chunk));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, size, chunk));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, ~(chunk - 1), chunk));
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_INJECT_BAD_ALIAS, &two));
	EXPECT_EQ(EINVAL, errno);

	/* The window is not pulled away from under a page */
	p2p_buf_to_vram(_metadata, self, &buf);
	EXPECT_EQ(-EBUSY, p2p_gpu_window(&self->gpu, 0, 0));
	EXPECT_EQ(-EBUSY, p2p_gpu_window(&self->gpu, 0, size));

	/* Write protection holds for the GPU, too */
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	EXPECT_EQ(-EPERM, p2p_gpu_write(&self->gpu, buf.p, data, 1));
	EXPECT_LE(0, p2p_gpu_read(&self->gpu, buf.p, data, 1));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);

	ASSERT_EQ(0, munmap(buf.p, buf.len));
	EXPECT_EQ(-EFAULT, p2p_gpu_read(&self->gpu, buf.p, data, 1));
	EXPECT_EQ(-EFAULT, p2p_gpu_write(&self->gpu, buf.p, data, 1));
	/* Nothing to move: an error, or nothing moved */
	EXPECT_GE(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
}

TEST_HARNESS_MAIN
