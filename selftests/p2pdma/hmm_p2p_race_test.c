// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: what changes while DMA runs
 *
 * An address that the NIC was given is good until the notifier says otherwise.
 * Here mappings change, processes fork and pages move while transfers are in
 * flight. Nothing may be lost, and nothing may reach memory that belongs to
 * somebody else by now.
 */
#include "p2p_fixture.h"

/* The NIC does not write to unmapped pages, and their VRAM may be reused */
TEST_F_TIMEOUT(p2p, unmap, TIMEOUT_S)
{
	const size_t hole = 32 * P2P_PAGE, hole_len = 16 * P2P_PAGE;
	struct p2p_buf buf, reuse;
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = self };

	p2p_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE);
	p2p_buf_init(_metadata, self, &reuse, LONG_PAGES, OTHER);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_EQ(0, munmap(buf.p + hole, hole_len));
	/* These take the place of the unmapped ones, and of others */
	p2p_buf_to_vram(_metadata, self, &reuse);
	p2p_transfer_end(_metadata, &t);

	EXPECT_EQ(-EFAULT, t.ret);
	EXPECT_LE(t.xfer.done, hole);
	EXPECT_LT(0U, t.xfer.done);
	p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0, t.xfer.done);
	p2p_expect_pattern(_metadata, "behind", buf.p + hole + hole_len,
			   BEFORE, hole + hole_len,
			   buf.len - hole - hole_len);
	if (p2p_peer_path(self->path))
		p2p_buf_gpu_read(_metadata, self, &reuse, OTHER, reuse.pages);
	p2p_buf_cpu_read(_metadata, &reuse, OTHER);
	p2p_buf_free(_metadata, self, &reuse);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(0, munmap(buf.p, hole));
	EXPECT_EQ(0, munmap(buf.p + hole + hole_len,
			    buf.len - hole - hole_len));
}

/* New memory at an old address gets what is written from now on */
TEST_F_TIMEOUT(p2p, remap, TIMEOUT_S)
{
	const size_t hole = 32 * P2P_PAGE, hole_len = 16 * P2P_PAGE;
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = self };
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_EQ(buf.p + hole,
		  mmap(buf.p + hole, hole_len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);

	/* The other way: the NIC reads new memory, not what was there */
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, false);
	ASSERT_EQ(buf.p + hole,
		  mmap(buf.p + hole, hole_len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	ASSERT_EQ(0, pthread_join(t.thread, NULL));
	EXPECT_EQ(0, t.ret);
	p2p_expect_pattern(_metadata, "in front", t.data, BEFORE, 0, hole);
	EXPECT_EQ(hole_len, p2p_compare_byte(t.data + hole, 0, hole_len));
	p2p_expect_pattern(_metadata, "behind", t.data + hole + hole_len,
			   BEFORE, hole + hole_len,
			   buf.len - hole - hole_len);
	free(t.data);
	p2p_buf_free(_metadata, self, &buf);
}

/*
 * Pages that the NIC has the addresses of, and has not got to, move: it faults
 * them again when it does, and completes.
 */
TEST_F_TIMEOUT(p2p, moved, TIMEOUT_S)
{
	const size_t at = 48 * P2P_PAGE, len = 16 * P2P_PAGE;
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = self };
	struct p2p_view view;
	struct p2p_buf buf;
	int write;

	if (!p2p_peer_path(self->path))
		SKIP(return, "no path to the GPU");
	p2p_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE);
	for (write = 0; write < 2; write++) {
		p2p_buf_to_vram(_metadata, self, &buf);
		p2p_transfer_start(_metadata, &t, &buf, write);
		EXPECT_EQ(16, p2p_gpu_to_host(&self->gpu, buf.p + at, len));
		ASSERT_EQ(0, pthread_join(t.thread, NULL));
		EXPECT_EQ(0, t.ret);
		EXPECT_LT(0U, t.xfer.retries);
		ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p,
					  buf.len, &view));
		EXPECT_EQ(16U, view.kind[P2PTEST_PAGE_HOST]);
		EXPECT_EQ(buf.pages - 16, view.peer);
		if (!write)
			p2p_expect_pattern(_metadata, "NIC read", t.data,
					   BEFORE, 0, buf.len);
		p2p_buf_cpu_read(_metadata, &buf, write ? AFTER : BEFORE);
		free(t.data);
	}
	p2p_buf_free(_metadata, self, &buf);
}

/* The right to write is taken away: nothing is written from now on */
TEST_F_TIMEOUT(p2p, protect, TIMEOUT_S)
{
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = self };
	struct p2p_buf buf;
	unsigned char *copy;

	p2p_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	copy = malloc(buf.len);
	ASSERT_NE(NULL, copy);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	memcpy(copy, buf.p, buf.len);
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(-EPERM, t.ret);
	EXPECT_LT(0U, t.xfer.done);
	EXPECT_EQ(0, memcmp(copy, buf.p, buf.len));
	p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0, t.xfer.done);
	p2p_expect_pattern(_metadata, "rest", buf.p + t.xfer.done, BEFORE,
			   t.xfer.done, buf.len - t.xfer.done);
	free(copy);
	p2p_buf_free(_metadata, self, &buf);
}

/* A child has what was there at the fork: no later DMA shows in it */
TEST_F_TIMEOUT(p2p, fork, TIMEOUT_S)
{
	struct p2p_buf buf;
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = self };
	int to_child[2];
	size_t same, rest;
	pid_t pid;
	char c;

	p2p_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, pipe(to_child));
	p2p_transfer_start(_metadata, &t, &buf, true);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		same = p2p_compare(buf.p, AFTER, 0, buf.len);
		rest = (same + P2P_PAGE - 1) & ~(P2P_PAGE - 1);
		EXPECT_LT(0U, same);
		EXPECT_LT(same, buf.len);
		p2p_expect_pattern(_metadata, "child", buf.p + rest, BEFORE,
				   rest, buf.len - rest);
		_exit(0);
	}
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A region ends while a transfer uses it: that completes, and is the last one */
TEST_F_TIMEOUT(p2p, dereg, TIMEOUT_S)
{
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = self };
	struct p2p_buf buf;
	char c;

	p2p_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	EXPECT_EQ(buf.len, t.xfer.done);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
}

/* Pages move during DMA */

/*
 * A page has four owners here: the NIC writes its first half, the CPU counts
 * in one word, the GPU in another one, and the rest is nobody's. Whoever takes
 * the page along, no write of anybody may get lost.
 */
#define MOVE_PAGES	32U
#define MOVE_ROUNDS	3
#define NIC_BYTES	2048
#define CPU_WORD	2048
#define GPU_WORD	3072

struct moving {
	P2P_SELF *p2p;
	struct p2p_buf buf;
	bool done;		/* set once, when the NIC has had enough */
	int nic_ret;		/* the first error of each thread */
	long gpu_ret;
	__u64 nic_page;		/* first page the NIC read wrong, +1 */
	__u64 retries;
	__u64 cpu_count;
	__u64 gpu_count;
};

static void *moving_cpu(void *arg)
{
	struct moving *m = arg;
	size_t i;

	while (!__atomic_load_n(&m->done, __ATOMIC_ACQUIRE)) {
		m->cpu_count++;
		for (i = 0; i < m->buf.pages; i++) {
			__atomic_store_n((__u64 *)(m->buf.p + i * P2P_PAGE +
						   CPU_WORD),
					 m->cpu_count, __ATOMIC_RELAXED);
			if (i % 4 == 3)
				p2p_sleep_ms(70);
		}
	}
	return NULL;
}

static void *moving_gpu(void *arg)
{
	struct moving *m = arg;
	size_t i;
	long ret;

	while (!__atomic_load_n(&m->done, __ATOMIC_ACQUIRE)) {
		ret = p2p_gpu_to_vram(&m->p2p->gpu, m->buf.p, m->buf.len);
		if (ret < 0 && !m->gpu_ret)
			m->gpu_ret = ret;
		p2p_sleep_ms(130);
		m->gpu_count++;
		for (i = 0; i < m->buf.pages; i++) {
			ret = p2p_gpu_write(&m->p2p->gpu, m->buf.p +
					    i * P2P_PAGE + GPU_WORD,
					    &m->gpu_count,
					    sizeof(m->gpu_count));
			if (ret < 0 && !m->gpu_ret)
				m->gpu_ret = ret;
		}
		p2p_sleep_ms(170);
		if (m->gpu_count % 4 == 0)
			p2p_gpu_to_host(&m->p2p->gpu, m->buf.p,
					m->buf.len / 2);
	}
	return NULL;
}

static void *moving_nic(void *arg)
{
	struct moving *m = arg;
	unsigned char data[NIC_BYTES];
	struct p2ptest_nic_xfer xfer;
	size_t i, r, rounds;
	int ret;

	for (rounds = 1; rounds <= MOVE_ROUNDS; rounds++) {
		for (r = 0; r < 2 * m->buf.pages; r++) {
			unsigned char *p;

			i = r % m->buf.pages;
			p = m->buf.p + i * P2P_PAGE;
			if (r < m->buf.pages) {
				p2p_fill(data, AFTER + rounds, i * P2P_PAGE,
					 NIC_BYTES);
				ret = p2p_nic_write(&m->p2p->nic, m->buf.handle,
						    p, data, NIC_BYTES, &xfer);
			} else {
				ret = p2p_nic_read(&m->p2p->nic, m->buf.handle,
						   p, data, NIC_BYTES, &xfer);
				if (p2p_compare(data, AFTER + rounds,
						i * P2P_PAGE, NIC_BYTES) !=
				    NIC_BYTES && !m->nic_page)
					m->nic_page = i + 1;
			}
			m->retries += xfer.retries;
			if (ret && !m->nic_ret)
				m->nic_ret = ret;
		}
	}
	__atomic_store_n(&m->done, true, __ATOMIC_RELEASE);
	return NULL;
}

TEST_F_TIMEOUT(p2p, moving, TIMEOUT_S)
{
	void *(*const run[])(void *) = { moving_nic, moving_cpu, moving_gpu };
	struct moving m = { .p2p = self };
	pthread_t thread[ARRAY_SIZE(run)];
	struct p2ptest_gpu_info before;
	unsigned char page[4096];
	__u64 word;
	size_t i;

	p2p_buf_init(_metadata, self, &m.buf, MOVE_PAGES, BEFORE);
	before = p2p_info(_metadata, &self->gpu);
	for (i = 0; i < ARRAY_SIZE(run); i++)
		ASSERT_EQ(0, pthread_create(&thread[i], NULL, run[i], &m));
	for (i = 0; i < ARRAY_SIZE(run); i++)
		ASSERT_EQ(0, pthread_join(thread[i], NULL));

	EXPECT_EQ(0, m.nic_ret);
	EXPECT_EQ(0, m.gpu_ret);
	EXPECT_EQ(0U, m.nic_page)
		TH_LOG("the NIC read page %llu wrong", m.nic_page - 1);
	TH_LOG("%llu pages moved, %llu retries, CPU %llu, GPU %llu rounds",
	       p2p_moves(_metadata, &self->gpu, &before), m.retries,
	       m.cpu_count, m.gpu_count);
	/* They did get into each other's way */
	EXPECT_LT(MOVE_PAGES, p2p_moves(_metadata, &self->gpu, &before));
	EXPECT_LT(1U, m.cpu_count);
	EXPECT_LT(1U, m.gpu_count);

	for (i = 0; i < MOVE_PAGES; i++) {
		memcpy(page, m.buf.p + i * P2P_PAGE, sizeof(page));
		p2p_expect_pattern(_metadata, "of the NIC", page,
				   AFTER + MOVE_ROUNDS, i * P2P_PAGE,
				   NIC_BYTES);
		memcpy(&word, page + CPU_WORD, sizeof(word));
		EXPECT_EQ(m.cpu_count, word);
		memcpy(&word, page + GPU_WORD, sizeof(word));
		EXPECT_EQ(m.gpu_count, word);
		p2p_expect_pattern(_metadata, "of nobody", page + CPU_WORD + 8,
				   BEFORE, i * P2P_PAGE + CPU_WORD + 8,
				   GPU_WORD - CPU_WORD - 8);
		p2p_expect_pattern(_metadata, "of nobody", page + GPU_WORD + 8,
				   BEFORE, i * P2P_PAGE + GPU_WORD + 8,
				   P2P_PAGE - GPU_WORD - 8);
	}
	p2p_buf_free(_metadata, self, &m.buf);
}

/* More memory than VRAM: pages leave, the NIC drops them, and data is intact */
TEST_F_TIMEOUT(p2p, overcommit, TIMEOUT_S)
{
	const size_t step = 4UL << 20;
	struct p2ptest_gpu_info before, now;
	struct p2p_view view;
	struct p2p_buf buf, big;
	size_t pos;
	long ret;

	p2p_buf_init(_metadata, self, &buf, 16, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);

	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_init(_metadata, self, &big,
		     (before.vram_size + before.vram_size / 4) / P2P_PAGE,
		     OTHER);
	for (pos = 0; pos < big.len; pos += step) {
		ret = p2p_gpu_to_vram(&self->gpu, big.p + pos,
				      pos + step < big.len ? step :
							     big.len - pos);
		ASSERT_LT(0, ret)
			TH_LOG("at byte %zu of %zu", pos, big.len);
	}
	now = p2p_info(_metadata, &self->gpu);
	EXPECT_LE(before.evicted + big.pages - before.vram_size / P2P_PAGE,
		  now.evicted);
	EXPECT_LE(now.pages_used, now.vram_size / P2P_PAGE);
	/* It was not simply refused: VRAM is in use, nearly all of it */
	EXPECT_LE(now.vram_size / P2P_PAGE / 4 * 3, now.pages_used);
	/* One chunk left after the other: the newest pages are all there */
	pos = big.len - now.vram_size / 4 * 3;
	EXPECT_EQ((long)((big.len - pos) / P2P_PAGE),
		  p2p_gpu_resident(&self->gpu, big.p + pos, big.len - pos));

	/* The oldest pages had to go, and the NIC knows */
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	if (p2p_peer_path(self->path))
		EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_UNMAPPED]);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);

	/* Some of the new ones by NIC, then all of them by CPU */
	for (pos = 0; pos < big.len; pos += big.len / 16) {
		unsigned char page[4096] = {};

		EXPECT_EQ(0, p2p_nic_read(&self->nic, big.handle, big.p + pos,
					  page, sizeof(page), NULL));
		p2p_expect_pattern(_metadata, "NIC read", page, OTHER, pos,
				   sizeof(page));
	}
	p2p_buf_cpu_read(_metadata, &big, OTHER);
	p2p_buf_free(_metadata, self, &big);
}

TEST_HARNESS_MAIN
