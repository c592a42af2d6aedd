// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: what ends while DMA runs
 *
 * An address that the NIC was given is good until the notifier says otherwise.
 * Here pages move, mappings change, processes fork and die, and devices go
 * away, while transfers are in flight. Nothing may be lost, nothing may reach
 * memory that belongs to somebody else by now, and nothing may be left behind;
 * the fixture looks after the latter.
 *
 * All waiting is sleeping: see p2p_fixture.h. A NIC needs about 400 ms of the
 * guest's time for a page, so that a moment "in the middle" of a transfer can
 * be chosen by sleeping.
 */
#include "p2p_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#define BEFORE	100
#define AFTER	200
#define OTHER	300

/* A transfer that somebody else disturbs: long, and when to start with it */
#define PAGES		64U
#define MIDDLE_MS	5000

/* A transfer of a whole buffer in a thread of its own */
struct transfer {
	pthread_t thread;
	const struct p2p_nic *nic;
	struct p2p_buf *buf;
	void *data;
	bool write;
	int ret;
	struct p2ptest_nic_xfer xfer;
};

static void *transfer_run(void *arg)
{
	struct transfer *t = arg;

	if (t->write)
		t->ret = p2p_nic_write(t->nic, t->buf->handle, t->buf->p,
				       t->data, t->buf->len, &t->xfer);
	else
		t->ret = p2p_nic_read(t->nic, t->buf->handle, t->buf->p,
				      t->data, t->buf->len, &t->xfer);
	return NULL;
}

static void transfer_start(struct __test_metadata *_metadata, P2P_SELF *self,
			   struct transfer *t, struct p2p_buf *buf, bool write)
{
	t->nic = &self->nic;
	t->buf = buf;
	t->write = write;
	t->data = calloc(1, buf->len);
	ASSERT_NE(NULL, t->data);
	if (write)
		p2p_fill(t->data, AFTER, 0, buf->len);
	ASSERT_EQ(0, pthread_create(&t->thread, NULL, transfer_run, t));
}

static void transfer_wait(struct __test_metadata *_metadata,
			  struct transfer *t)
{
	ASSERT_EQ(0, pthread_join(t->thread, NULL));
	free(t->data);
}

/* A child that does not outlive the test */
static pid_t fork_child(struct __test_metadata *_metadata)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static void wait_child(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* The address space changes during DMA */

/* What was unmapped is not written any more, and its VRAM may be reused */
TEST_F_TIMEOUT(p2p, unmap, TIMEOUT_S)
{
	const size_t hole = 32 * P2P_PAGE, hole_len = 16 * P2P_PAGE;
	struct p2p_buf buf, reuse;
	struct transfer t;

	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_init(_metadata, self, &reuse, PAGES, OTHER);
	p2p_buf_to_vram(_metadata, self, &buf);
	transfer_start(_metadata, self, &t, &buf, true);
	p2p_sleep_ms(MIDDLE_MS);
	ASSERT_EQ(0, munmap(buf.p + hole, hole_len));
	/* These take the place of the unmapped ones, and of others */
	p2p_buf_to_vram(_metadata, self, &reuse);
	transfer_wait(_metadata, &t);

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
	struct transfer t;
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	transfer_start(_metadata, self, &t, &buf, true);
	p2p_sleep_ms(MIDDLE_MS);
	ASSERT_EQ(buf.p + hole,
		  mmap(buf.p + hole, hole_len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	transfer_wait(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);

	/* The other way: the NIC reads new memory, not what was there */
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	p2p_buf_to_vram(_metadata, self, &buf);
	t.nic = &self->nic;
	t.buf = &buf;
	t.write = false;
	t.data = calloc(1, buf.len);
	ASSERT_NE(NULL, t.data);
	ASSERT_EQ(0, pthread_create(&t.thread, NULL, transfer_run, &t));
	p2p_sleep_ms(MIDDLE_MS);
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

/* The right to write is taken away: nothing is written from now on */
TEST_F_TIMEOUT(p2p, protect, TIMEOUT_S)
{
	struct transfer t;
	struct p2p_buf buf;
	unsigned char *copy;

	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	copy = malloc(buf.len);
	ASSERT_NE(NULL, copy);
	transfer_start(_metadata, self, &t, &buf, true);
	p2p_sleep_ms(MIDDLE_MS);
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	memcpy(copy, buf.p, buf.len);
	transfer_wait(_metadata, &t);
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
	struct transfer t;
	int to_child[2];
	size_t same, rest;
	pid_t pid;
	char c;

	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, pipe(to_child));
	transfer_start(_metadata, self, &t, &buf, true);
	p2p_sleep_ms(MIDDLE_MS);
	pid = fork_child(_metadata);
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
	transfer_wait(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	wait_child(_metadata, pid);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A region ends while a transfer uses it: the transfer may not hang */
TEST_F_TIMEOUT(p2p, dereg, TIMEOUT_S)
{
	struct transfer t;
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	transfer_start(_metadata, self, &t, &buf, true);
	p2p_sleep_ms(MIDDLE_MS);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	transfer_wait(_metadata, &t);
	if (t.ret)
		EXPECT_EQ(-ENOENT, t.ret);
	p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0, t.xfer.done);
	p2p_expect_pattern(_metadata, "rest", buf.p + t.xfer.done, BEFORE,
			   t.xfer.done, buf.len - t.xfer.done);
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

/* More memory than VRAM: what has to leave is told to the NIC, and intact */
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

/* Processes */

/* One of two that use the same devices at the same time */
static void neighbour(struct __test_metadata *_metadata, __u64 seed)
{
	P2P_SELF own = { };
	struct p2p_buf buf;
	int i;

	own.path = P2P_EXPECT_UNKNOWN;
	ASSERT_EQ(0, p2p_gpu_open(&own.gpu, 0));
	ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
	p2p_buf_init(_metadata, &own, &buf, 16, seed);
	for (i = 0; i < 4; i++) {
		p2p_buf_to_vram(_metadata, &own, &buf);
		p2p_buf_nic_read(_metadata, &own, &buf, seed + i);
		p2p_buf_nic_write(_metadata, &own, &buf, seed + i + 1);
		p2p_buf_gpu_read(_metadata, &own, &buf, seed + i + 1,
				 p2p_gpu_resident(&own.gpu, buf.p, buf.len));
		p2p_buf_cpu_read(_metadata, &buf, seed + i + 1);
	}
	p2p_buf_free(_metadata, &own, &buf);
}

TEST_F_TIMEOUT(p2p, two_processes, TIMEOUT_S)
{
	pid_t pid[2];
	int i;

	for (i = 0; i < 2; i++) {
		pid[i] = fork_child(_metadata);
		if (!pid[i]) {
			neighbour(_metadata, 1000 * (i + 1));
			_exit(0);
		}
	}
	for (i = 0; i < 2; i++)
		wait_child(_metadata, pid[i]);
}

/* Register, move to VRAM, tell the parent, and be in a transfer when it ends */
static void victim(struct __test_metadata *_metadata, P2P_SELF *self,
		   int to_parent, bool transfer)
{
	/* The fixture's data is shared with the parent */
	P2P_SELF own = *self;
	struct p2p_buf buf;

	ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
	p2p_buf_init(_metadata, &own, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, &own, &buf);
	p2p_buf_nic_read(_metadata, &own, &buf, BEFORE);
	ASSERT_EQ(1, write(to_parent, "", 1));
	if (transfer)
		p2p_buf_nic_write(_metadata, &own, &buf, AFTER);
}

TEST_F_TIMEOUT(p2p, killed, TIMEOUT_S)
{
	int to_parent[2], status;
	struct p2p_buf buf;
	pid_t pid;
	char c;

	ASSERT_EQ(0, pipe(to_parent));
	pid = fork_child(_metadata);
	if (!pid) {
		victim(_metadata, self, to_parent[1], true);
		_exit(0);
	}
	ASSERT_EQ(1, read(to_parent[0], &c, 1));
	p2p_sleep_ms(MIDDLE_MS);
	if (p2p_peer_path(self->path))
		EXPECT_LE(PAGES,
			  p2p_info(_metadata, &self->gpu).pages_used);
	ASSERT_EQ(0, kill(pid, SIGKILL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status))
		TH_LOG("it had finished before it was killed");
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));

	/* The devices are as good as before */
	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* Exit without deregistering or closing anything */
TEST_F_TIMEOUT(p2p, exit, TIMEOUT_S)
{
	int to_parent[2];
	pid_t pid;
	char c;

	ASSERT_EQ(0, pipe(to_parent));
	pid = fork_child(_metadata);
	if (!pid) {
		victim(_metadata, self, to_parent[1], false);
		_exit(0);
	}
	ASSERT_EQ(1, read(to_parent[0], &c, 1));
	wait_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
}

/* The file outlives the process whose regions it holds */
TEST_F_TIMEOUT(p2p, exit_shared_file, TIMEOUT_S)
{
	struct p2p_buf buf, *shared;
	pid_t pid;
	char c;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)shared);
	pid = fork_child(_metadata);
	if (!pid) {
		p2p_buf_init(_metadata, self, shared, 8, BEFORE);
		p2p_buf_to_vram(_metadata, self, shared);
		p2p_buf_nic_write(_metadata, self, shared, AFTER);
		_exit(0);
	}
	wait_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	/* Its region is not for us, and there is no memory behind it */
	EXPECT_EQ(-EPERM, p2p_nic_read(&self->nic, shared->handle, shared->p,
				       &c, 1, NULL));
	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	EXPECT_NE(shared->handle, buf.handle);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A closed file is closed, whatever was registered on it */
TEST_F_TIMEOUT(p2p, close, TIMEOUT_S)
{
	const int nic = self->nic.fd, gpu = self->gpu.fd;
	struct p2p_gpu closed = { .fd = gpu };
	struct p2ptest_gpu_info info;
	struct p2p_buf buf;
	char c;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_nic_close(&self->nic);
	EXPECT_EQ(-EBADF, p2p_nic_read(&(struct p2p_nic){ .fd = nic },
				       buf.handle, buf.p, &c, 1, NULL));
	p2p_gpu_close(&self->gpu);
	EXPECT_EQ(-EBADF, p2p_gpu_info(&closed, &info));
	/* Memory in VRAM is the process's, not the file's */
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

/* Devices */

FIXTURE(p2p_unbind)
{
	P2P_SELF p2p;
	char gpu[P2P_PCI_NAME];
	char nic[P2P_PCI_NAME];
};

FIXTURE_VARIANT(p2p_unbind)
{
	bool busy;	/* a transfer is in flight */
};

FIXTURE_VARIANT_ADD(p2p_unbind, idle) { false };
FIXTURE_VARIANT_ADD(p2p_unbind, busy) { true };

FIXTURE_SETUP(p2p_unbind)
{
	p2p_setup(_metadata, &self->p2p, NULL);
	if (self->p2p.nic.fd < 0)
		return;
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->gpu));
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, self->nic));
}

FIXTURE_TEARDOWN_PARENT(p2p_unbind)
{
	/* Also if the test did not get that far */
	p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0);
	p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0);
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* After the NIC was bound again, everything works as it did */
static void works_again(struct __test_metadata *_metadata, P2P_SELF *self)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			p2p_path_reason(self->path), &before);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* The NIC goes away while regions are registered */
TEST_F_TIMEOUT(p2p_unbind, nic, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct p2ptest_nic_page page;
	struct transfer t = { };
	struct p2p_nic gone;
	struct p2p_buf buf;
	__u32 handle;
	char c = 0;

	p2p_buf_init(_metadata, p2p, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->busy) {
		transfer_start(_metadata, p2p, &t, &buf, true);
		p2p_sleep_ms(MIDDLE_MS);
	} else {
		p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	}
	ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->nic));
	if (variant->busy) {
		transfer_wait(_metadata, &t);
		EXPECT_EQ(-ENODEV, t.ret);
		ASSERT_LT(t.xfer.done, buf.len - P2P_PAGE);
		p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0,
				   t.xfer.done);
		/* The chunk in flight may have arrived, or not */
		p2p_expect_pattern(_metadata, "rest",
				   buf.p + t.xfer.done + P2P_PAGE, BEFORE,
				   t.xfer.done + P2P_PAGE,
				   buf.len - t.xfer.done - P2P_PAGE);
	}

	EXPECT_EQ(-ENODEV, p2p_nic_read(&p2p->nic, buf.handle, buf.p, &c, 1,
					NULL));
	EXPECT_EQ(-ENODEV, p2p_nic_write(&p2p->nic, buf.handle, buf.p, &c, 1,
					 NULL));
	EXPECT_EQ(-ENODEV, p2p_nic_reg(&p2p->nic, buf.p, 1, 0, &handle));
	EXPECT_EQ(-ENODEV, p2p_nic_query(&p2p->nic, buf.handle, buf.p, 1,
					 &page));
	EXPECT_EQ(-ENODEV, p2p_nic_dereg(&p2p->nic, buf.handle));
	EXPECT_GT(0, p2p_nic_open(&gone, 0));

	/* Memory and GPU do not care */
	if (!variant->busy) {
		p2p_buf_gpu_read(_metadata, p2p, &buf, AFTER,
				 p2p_gpu_resident(&p2p->gpu, buf.p, buf.len));
		p2p_buf_cpu_read(_metadata, &buf, AFTER);
		p2p_buf_to_vram(_metadata, p2p, &buf);
	}
	EXPECT_EQ(0, munmap(buf.p, buf.len));

	/* Bound again while the old file is still open: it stays dead */
	ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0));
	EXPECT_EQ(-ENODEV, p2p_nic_reg(&p2p->nic, &c, 1, 0, &handle));
	p2p_nic_close(&p2p->nic);
	ASSERT_EQ(0, p2p_nic_open(&p2p->nic, 0));
	works_again(_metadata, p2p);
}

/* The GPU goes away while the NIC has its addresses */
TEST_F_TIMEOUT(p2p_unbind, gpu, TIMEOUT_S)
{
	int to_parent[2], to_child[2];
	P2P_SELF *p2p = &self->p2p;
	struct p2ptest_gpu_info info;
	struct transfer t = { };
	struct p2p_buf buf;
	struct p2p_gpu gone;
	pid_t pid;
	char c;

	/* Somebody who has nothing to do with it has memory there as well */
	ASSERT_EQ(0, pipe(to_parent));
	ASSERT_EQ(0, pipe(to_child));
	pid = fork_child(_metadata);
	if (!pid) {
		p2p_buf_init(_metadata, p2p, &buf, PAGES, OTHER);
		p2p_buf_to_vram(_metadata, p2p, &buf);
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		p2p_buf_cpu_read(_metadata, &buf, OTHER);
		_exit(0);
	}
	ASSERT_EQ(1, read(to_parent[0], &c, 1));

	p2p_buf_init(_metadata, p2p, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->busy) {
		transfer_start(_metadata, p2p, &t, &buf, true);
		p2p_sleep_ms(MIDDLE_MS);
	} else {
		p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	}
	ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
	if (variant->busy) {
		transfer_wait(_metadata, &t);
		EXPECT_EQ(0, t.ret);
	}

	EXPECT_EQ(-ENODEV, p2p_gpu_info(&p2p->gpu, &info));
	EXPECT_EQ(-ENODEV, p2p_gpu_to_vram(&p2p->gpu, buf.p, buf.len));
	EXPECT_EQ(-ENODEV, p2p_gpu_read(&p2p->gpu, buf.p, &c, 1));
	EXPECT_GT(0, p2p_gpu_open(&gone, 0));
	/* The NIC goes on with memory that came home, and then the CPU */
	p2p_buf_nic_read(_metadata, p2p, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_nic_write(_metadata, p2p, &buf, BEFORE);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	wait_child(_metadata, pid);

	/* Bound again: the old region takes to the new addresses */
	ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0));
	EXPECT_EQ(-ENODEV, p2p_gpu_info(&p2p->gpu, &info));
	p2p_gpu_close(&p2p->gpu);
	ASSERT_EQ(0, p2p_gpu_open(&p2p->gpu, 0));
	ASSERT_EQ(0, p2p_gpu_window(&p2p->gpu, 0, p2p->info.vram_size));
	p2p_buf_to_vram(_metadata, p2p, &buf);
	info = p2p_info(_metadata, &p2p->gpu);
	p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	p2p_buf_reached(_metadata, p2p, &buf, buf.pages,
			p2p_path_reason(p2p->path), &info);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, p2p, &buf);
	works_again(_metadata, p2p);
}

TEST_HARNESS_MAIN
