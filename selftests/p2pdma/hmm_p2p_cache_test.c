// SPDX-License-Identifier: GPL-2.0
/*
 * Test of a cache of registrations: buffers stay registered after a transfer
 * ("lazy unpinning"), and no transfer may find what was at an address before
 */
#include "p2p_cache.h"
#include "p2p_fixture.h"

#include <sys/mman.h>

#define PAGES	4U
#define LEN	(PAGES * P2P_PAGE)
#define WRITE	P2PTEST_NIC_MR_WRITE

/* Copy by handles of the cache */
static int copy(struct p2p_cache *cache, P2P_SELF *self, const void *from,
		void *to)
{
	struct p2ptest_nic_copy copy = { .len = LEN };
	int ret = p2p_cache_get(cache, from, LEN, 0, &copy.src);

	if (!ret)
		ret = p2p_cache_get(cache, to, LEN, WRITE, &copy.dst);
	return ret ?: p2p_nic_copy(&self->nic, &copy);
}

static struct p2p_cache_stats stats(struct __test_metadata *_metadata,
				    struct p2p_cache *cache)
{
	struct p2p_cache_stats stats = { };

	EXPECT_EQ(0, p2p_cache_stats(cache, &stats));
	return stats;
}

/* The same buffers again are found, and the one that was used last stays */
TEST_F_TIMEOUT(p2p, least_recently_used, TIMEOUT_S)
{
	struct p2p_cache *cache = p2p_cache_new(&self->nic, 3 * LEN);
	struct p2p_buf buf[4], large;
	__u32 handle, again, part;
	int i;

	ASSERT_NE(NULL, cache);
	for (i = 0; i < 4; i++)
		p2p_buf_alloc(_metadata, &buf[i], PAGES, BEFORE + i);
	p2p_buf_alloc(_metadata, &large, 4 * PAGES, OTHER);

	for (i = 0; i < 3; i++)
		ASSERT_EQ(0, p2p_cache_get(cache, buf[i].p, LEN, 0, &handle));
	ASSERT_EQ(0, p2p_cache_get(cache, buf[0].p, LEN, 0, &handle));
	EXPECT_EQ(1U, stats(_metadata, cache).hits);
	EXPECT_EQ(3U, stats(_metadata, cache).misses);
	EXPECT_EQ(0U, stats(_metadata, cache).evictions);

	/* There is no room for a fourth: buffer 1 was used before the others */
	ASSERT_EQ(0, p2p_cache_get(cache, buf[3].p, LEN, 0, &again));
	EXPECT_EQ(1U, stats(_metadata, cache).evictions);
	ASSERT_EQ(0, p2p_cache_get(cache, buf[0].p, LEN, 0, &again));
	EXPECT_EQ(handle, again);
	ASSERT_EQ(0, p2p_cache_get(cache, buf[2].p, LEN, 0, &again));
	EXPECT_EQ(3U, stats(_metadata, cache).hits);
	ASSERT_EQ(0, p2p_cache_get(cache, buf[1].p, LEN, 0, &again));
	EXPECT_EQ(5U, stats(_metadata, cache).misses);

	/* Other rights are another registration */
	ASSERT_EQ(0, p2p_cache_get(cache, buf[1].p, LEN, WRITE, &handle));
	EXPECT_NE(handle, again);
	/* So is a part of the buffer, which takes room of its own */
	ASSERT_EQ(0, p2p_cache_get(cache, buf[1].p, LEN - P2P_PAGE, WRITE,
				   &part));
	EXPECT_NE(handle, part);
	EXPECT_EQ(-E2BIG, p2p_cache_get(cache, large.p, large.len, 0,
					&handle));
	p2p_cache_free(cache);
	EXPECT_EQ(-ENOENT, p2p_nic_unpin(&self->nic, again));
	for (i = 0; i < 4; i++)
		EXPECT_EQ(0, munmap(buf[i].p, LEN));
	EXPECT_EQ(0, munmap(large.p, large.len));
}

/*
 * An example of the documentation of GPUDirect RDMA: memory of a GPU is freed,
 * and the next allocation, on another GPU, gets the same address. There, the
 * library has to ask for tokens of each pointer again. Here it need not know.
 */
TEST_F_TIMEOUT(p2p, same_address, TIMEOUT_S)
{
	struct p2p_cache *cache = p2p_cache_new(&self->nic, 1UL << 20);
	struct p2p_gpu second = self->gpu;
	struct p2p_buf src, dst;
	int round;

	ASSERT_NE(NULL, cache);
	if (p2p_gpu_count() > 1)
		ASSERT_EQ(0, p2p_gpu_open(&second, 1));
	p2p_buf_alloc(_metadata, &src, PAGES, BEFORE);
	p2p_buf_alloc(_metadata, &dst, PAGES, OTHER);
	for (round = 0; round < 4; round++) {
		const struct p2p_gpu *gpu = round & 1 ? &second : &self->gpu;

		ASSERT_EQ((long)PAGES, p2p_gpu_to_vram(gpu, src.p, LEN));
		ASSERT_EQ(0, copy(cache, self, src.p, dst.p));
		p2p_buf_cpu_read(_metadata, &dst, BEFORE + round);
		/* Without an allocation in between there is nothing there */
		ASSERT_EQ(0, munmap(src.p, LEN));
		EXPECT_EQ(-EFAULT, copy(cache, self, src.p, dst.p));
		ASSERT_EQ(src.p, mmap(src.p, LEN, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
				      -1, 0));
		p2p_fill(src.p, BEFORE + round + 1, 0, LEN);
	}
	EXPECT_EQ(2U, stats(_metadata, cache).misses);
	EXPECT_EQ(14U, stats(_metadata, cache).hits);
	EXPECT_LE(4U, stats(_metadata, cache).revocations);
	p2p_cache_free(cache);
	if (second.fd != self->gpu.fd)
		p2p_gpu_close(&second);
	EXPECT_EQ(0, munmap(src.p, LEN));
	EXPECT_EQ(0, munmap(dst.p, LEN));
}

TEST_HARNESS_MAIN
