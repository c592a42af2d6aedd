// SPDX-License-Identifier: GPL-2.0
/*
 * Test of RDMA on-demand paging over device private memory with a real verbs
 * device: memory, regions, queue pairs, processes and the GPU change or go away
 * while transfers run
 *
 * $P2P_VERBS_ROUNDS is how often; the default keeps slow emulation short.
 */
#include "verbs_fixture.h"

#include <poll.h>

#define RACE_PAGES	64UL

/* Transfers that are posted at once, and the least number of times that pages move */
#define WRITES		8
#define MOVES		8

/* The driver of real NICs with on-demand paging */
#define NIC_DRIVER	"mlx5_core"

/* Its driver needs some seconds until a port is active */
#define BIND_MS		60000

/* In between, page faults and some transfers of RACE_PAGES pages get done */
#define MOVE_MS		50

static unsigned int rounds(void)
{
	const char *text = getenv("P2P_VERBS_ROUNDS");

	return text && *text ? strtoul(text, NULL, 0) : 10;
}

/* A thread that writes and reads back until @stop is set */
struct traffic {
	pthread_t thread;
	VERBS_SELF *self;
	__u64 seed;		/* no other process writes the same */
	struct verbs_buf mine;
	struct verbs_buf theirs;
	unsigned char *seen;	/* by the GPU */
	bool stop;
	unsigned int done;	/* rounds */
	int status;		/* of the first transfer that failed */
	bool wrong;		/* what came back is not what was written */
	unsigned int pause;	/* of who moves memory, in ms */
	unsigned int done_before;	/* the last pause */
};

/* Does the GPU find what was written? The NIC might read from where it wrote. */
static bool gpu_sees(struct traffic *t)
{
	/* The GPU may be gone */
	return p2p_gpu_read(&t->self->gpu, t->theirs.p, t->seen,
			    t->theirs.len) < 0 ||
	       !memcmp(t->seen, t->theirs.want + P2P_PAGE, t->theirs.len);
}

static void *traffic_run(void *arg)
{
	struct traffic *t = arg;
	struct verbs_end mine = verbs_at(&t->mine, 0);
	struct verbs_end theirs = verbs_at(&t->theirs, 0);
	unsigned int i;

	for (i = 0; !__atomic_load_n(&t->stop, __ATOMIC_RELAXED); i++) {
		verbs_buf_fill(&t->mine, AFTER + t->seed + i);
		t->status = verbs_do_moving(&t->self->v, &t->self->link,
					    IBV_WR_RDMA_WRITE, mine, theirs,
					    t->mine.len, NULL);
		if (t->status)
			break;
		memcpy(t->theirs.want + P2P_PAGE, t->mine.want + P2P_PAGE,
		       t->mine.len);
		t->wrong = !gpu_sees(t);
		if (t->wrong)
			break;
		memset(t->mine.p, 0, t->mine.len);
		t->status = verbs_do_moving(&t->self->v, &t->self->link,
					    IBV_WR_RDMA_READ, mine, theirs,
					    t->mine.len, NULL);
		if (t->status)
			break;
		t->wrong = memcmp(t->mine.p, t->mine.want + P2P_PAGE,
				  t->mine.len);
		if (t->wrong)
			break;
		__atomic_store_n(&t->done, i + 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&t->stop, true, __ATOMIC_RELAXED);
	return NULL;
}

static void traffic_start(struct __test_metadata *_metadata, VERBS_SELF *self,
			  struct traffic *t, size_t pages)
{
	t->self = self;
	t->seed = (__u64)getpid() << 20;
	t->pause = 1;
	t->seen = malloc(pages * P2P_PAGE);
	ASSERT_NE(NULL, t->seen);
	verbs_buf_init(_metadata, self, &t->mine, pages, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &t->theirs, pages, OTHER, VERBS_ODP);
	verbs_buf_to_vram(_metadata, self, &t->theirs);
	ASSERT_EQ(0, pthread_create(&t->thread, NULL, traffic_run, t));
}

/* Has it ended, or got further than @done rounds? It cannot hang */
static bool traffic_past(struct traffic *t, unsigned int done)
{
	return __atomic_load_n(&t->stop, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&t->done, __ATOMIC_RELAXED) > done;
}

static void traffic_wait(struct traffic *t, unsigned int more)
{
	unsigned int done = __atomic_load_n(&t->done, __ATOMIC_RELAXED);

	while (!traffic_past(t, done + more))
		p2p_sleep_ms(1);
}

/*
 * Who moves memory waits. As long as no transfer gets done, moves become rarer: page
 * faults need the time.
 */
static void traffic_rest(struct traffic *t)
{
	unsigned int done = __atomic_load_n(&t->done, __ATOMIC_RELAXED);

	if (done != t->done_before)
		t->pause = 1;
	else if (t->pause < 4 * FAULT_MS)
		t->pause *= 2;
	t->done_before = done;
	p2p_sleep_ms(t->pause);
}

static void traffic_free(struct __test_metadata *_metadata, struct traffic *t)
{
	verbs_buf_free(_metadata, &t->theirs);
	verbs_buf_free(_metadata, &t->mine);
	free(t->seen);
}

static void traffic_end(struct __test_metadata *_metadata, VERBS_SELF *self,
			struct traffic *t)
{
	__atomic_store_n(&t->stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(t->thread, NULL));
	verbs_expect_success(_metadata, t->status);
	EXPECT_FALSE(t->wrong)
		TH_LOG("what was read is not what was written");
	verbs_buf_check(_metadata, self, &t->theirs);
	verbs_buf_check(_metadata, self, &t->mine);
}

static void traffic_stop(struct __test_metadata *_metadata, VERBS_SELF *self,
			 struct traffic *t)
{
	traffic_end(_metadata, self, t);
	traffic_free(_metadata, t);
}

static void touch(const struct verbs_buf *buf)
{
	size_t i;

	for (i = 0; i < buf->len; i += P2P_PAGE)
		p2p_compare_byte(buf->p + i, 0, 1);
}

/* To VRAM, and home because the GPU evicts it, or because the CPU touches it */
static void move(struct __test_metadata *_metadata, VERBS_SELF *self,
		 size_t pages)
{
	bool huge = pages * P2P_PAGE == P2P_HUGE;
	unsigned int i, moved_huge = 0;
	struct traffic t = { };
	long in = 0, n;

	traffic_start(_metadata, self, &t, pages);
	/* As it is: a part that moves alone makes it small */
	traffic_wait(&t, 0);
	/* Who uses a page at that time may keep it from becoming a part of a huge one */
	for (i = 0; i < MOVES || !traffic_past(&t, rounds()) ||
	     (huge && moved_huge < 2 && i < 8 * MOVES); i++) {
		struct verbs_buf *buf = i & 1 ? &t.mine : &t.theirs;

		/* That fails if some of it is not at home */
		if (huge)
			madvise(buf->p, buf->len, MADV_COLLAPSE);
		n = p2p_gpu_to_vram(&self->gpu, buf->p, buf->len);
		ASSERT_LE(0, n);
		in += n;
		if (huge && n && p2p_huge_bytes(buf->p) == (long)P2P_HUGE)
			moved_huge++;
		traffic_rest(&t);
		if (i & 2)
			touch(buf);
		else
			ASSERT_LE(0, p2p_gpu_to_host(&self->gpu, buf->p,
						     i & 4 ? buf->len :
							     buf->len / 2));
	}
	/* Again and again */
	EXPECT_LT((long)(2 * pages), in);
	if (huge)
		EXPECT_LT(1U, moved_huge);
	traffic_stop(_metadata, self, &t);
}

TEST_F_TIMEOUT(verbs, move, TIMEOUT_S)
{
	move(_metadata, self, RACE_PAGES);
}

TEST_F_TIMEOUT(verbs, move_huge, TIMEOUT_S)
{
	move(_metadata, self, P2P_HUGE / P2P_PAGE);
}

/* A transfer that lost its region may have done all, part or nothing */
static void expect_old_or_new(struct __test_metadata *_metadata,
			      struct verbs_buf *buf, __u64 old, __u64 new)
{
	size_t i;

	for (i = 0; i < buf->len; i += 64) {
		EXPECT_TRUE(p2p_compare(buf->p + i, old, i, 64) == 64 ||
			    p2p_compare(buf->p + i, new, i, 64) == 64) {
			TH_LOG("page %zu, byte %zu is neither old nor new",
			       i / P2P_PAGE, i % P2P_PAGE);
			return;
		}
	}
}

/*
 * The region of one side ends, or both queue pairs do, while a page fault of
 * the transfer may be pending
 */
static void end_pending(struct __test_metadata *_metadata, VERBS_SELF *self,
			bool remote, bool queues)
{
	struct verbs_buf mine, theirs, *ends = remote ? &theirs : &mine;
	unsigned int i, n, failed = 0;
	int status;

	for (i = 0; i < rounds() && !_metadata->exit_code; i++) {
		verbs_buf_init(_metadata, self, &mine, RACE_PAGES, AFTER,
			       VERBS_ODP);
		verbs_buf_init(_metadata, self, &theirs, RACE_PAGES, BEFORE,
			       VERBS_ODP);
		verbs_buf_to_vram(_metadata, self, &mine);
		verbs_buf_to_vram(_metadata, self, &theirs);
		/* The same several times, so that it is not over too soon */
		for (n = 0; n < WRITES; n++)
			ASSERT_EQ(0, verbs_post(&self->link, IBV_WR_RDMA_WRITE,
						verbs_at(&mine, 0),
						verbs_at(&theirs, 0), mine.len));
		/* Begin, some of the times */
		if (i & 1)
			p2p_sleep_ms(i & 3);
		if (!queues) {
			EXPECT_EQ(0, ibv_dereg_mr(ends->mr));
			ends->mr = NULL;
			/* From now on nobody else writes or reads it */
			p2p_fill(ends->want + P2P_PAGE, OTHER, 0, ends->len);
			ASSERT_LE(0, p2p_gpu_write(&self->gpu, ends->p,
						   ends->want + P2P_PAGE,
						   ends->len));
			for (n = 0; n < WRITES; n++) {
				status = verbs_wait(&self->link, ASKS);
				EXPECT_LE(0, status) {
					TH_LOG("%s", verbs_str(status));
				}
				failed += status != IBV_WC_SUCCESS;
			}
		}
		verbs_relink(_metadata, self);
		if (queues || !remote)
			expect_old_or_new(_metadata, &theirs, BEFORE, AFTER);
		else
			verbs_buf_check(_metadata, self, &theirs);
		verbs_buf_check(_metadata, self, &mine);
		verbs_buf_free(_metadata, &mine);
		verbs_buf_free(_metadata, &theirs);
	}
	/* Otherwise all were over before */
	if (!queues)
		EXPECT_LT(0U, failed);
}

TEST_F_TIMEOUT(verbs, dereg_remote, TIMEOUT_S)
{
	end_pending(_metadata, self, true, false);
}

TEST_F_TIMEOUT(verbs, dereg_local, TIMEOUT_S)
{
	end_pending(_metadata, self, false, false);
}

/* A region ends while the driver still takes apart what it had for memory of it */
TEST_F_TIMEOUT(verbs, dereg_unmapped, TIMEOUT_S)
{
	struct verbs_buf mine, theirs;
	unsigned int i;

	verbs_buf_init(_metadata, self, &mine, 1, BEFORE, VERBS_REMOTE);
	for (i = 0; i < rounds() && !_metadata->exit_code; i++) {
		verbs_buf_init(_metadata, self, &theirs, 1, OTHER, VERBS_ODP);
		verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &theirs, 0,
			   &mine, 0, mine.len);
		verbs_buf_check(_metadata, self, &mine);
		ASSERT_EQ(0, munmap(theirs.p, theirs.len));
		verbs_buf_free(_metadata, &theirs);
	}
	verbs_buf_free(_metadata, &mine);
}

/* A thread that prefetches the pages of a key until @stop is set */
struct prefetcher {
	pthread_t thread;
	struct ibv_pd *pd;
	struct ibv_sge sge;
	bool stop;
	unsigned int done;
	int error;
};

static void *prefetch_run(void *arg)
{
	struct prefetcher *p = arg;
	int ret;

	while (!p->error && !__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
		ret = ibv_advise_mr(p->pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
				    IBV_ADVISE_MR_FLAG_FLUSH, &p->sge, 1);
		/* Nothing has the key, or something else does */
		if (ret != ENOENT && ret != EINVAL)
			p->error = ret;
		if (!ret)
			__atomic_add_fetch(&p->done, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A region of @buf, which is a dma-buf unless @fd is -1 */
static struct ibv_mr *prefetch_reg(VERBS_SELF *self, struct verbs_buf *buf,
				   int fd)
{
	if (fd < 0)
		return verbs_reg(self, buf, VERBS_ODP);
	return ibv_reg_dmabuf_mr(self->v.pd, 0, buf->len, (uintptr_t)buf->p, fd,
				 VERBS_REMOTE);
}

/*
 * A region may have the key of the one before it: who knows that one must not get
 * at the region before it is there. It is so large that this takes its time.
 */
static void prefetch_early(struct __test_metadata *_metadata, VERBS_SELF *self,
			   struct verbs_buf *buf, int fd)
{
	struct prefetcher p = { .pd = self->v.pd };
	unsigned int i, same = 0;

	buf->mr = prefetch_reg(self, buf, fd);
	if (!buf->mr && errno == EOPNOTSUPP)
		SKIP(return, "the RDMA device takes no dma-buf");
	ASSERT_NE(NULL, buf->mr);
	p.sge = (struct ibv_sge){
		.addr = (uintptr_t)buf->p,
		.length = P2P_PAGE,
		.lkey = buf->mr->lkey,
	};
	ASSERT_EQ(0, pthread_create(&p.thread, NULL, prefetch_run, &p));
	/* On a busy host, all rounds might be over before the thread runs. */
	while (!__atomic_load_n(&p.done, __ATOMIC_RELAXED) &&
	       !__atomic_load_n(&p.error, __ATOMIC_RELAXED))
		p2p_sleep_ms(1);
	for (i = 0; i < rounds() && !p.error; i++) {
		EXPECT_EQ(0, ibv_dereg_mr(buf->mr));
		buf->mr = prefetch_reg(self, buf, fd);
		ASSERT_NE(NULL, buf->mr);
		same += buf->mr->lkey == p.sge.lkey;
	}
	__atomic_store_n(&p.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(p.thread, NULL));
	EXPECT_EQ(0, p.error) {
		TH_LOG("prefetch: %s", strerror(p.error));
	}
	EXPECT_EQ(0, ibv_dereg_mr(buf->mr));
	EXPECT_EQ(0, munmap(buf->p, buf->len));
	if (!same)
		P2P_SKIP(return, "no region has the key of another one");
}

TEST_F_TIMEOUT(verbs, prefetch_early, TIMEOUT_S)
{
	struct verbs_buf buf = { .len = 1UL << 30 };

	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		     MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf.p);
	madvise(buf.p, buf.len, MADV_NOHUGEPAGE);
	prefetch_early(_metadata, self, &buf, -1);
}

TEST_F_TIMEOUT(verbs, prefetch_early_dmabuf, TIMEOUT_S)
{
	struct verbs_buf buf = { .len = 32UL << 20 };
	int fd = verbs_dmabuf(_metadata, &buf.p, buf.len);

	if (fd < 0)
		SKIP(return, "no udmabuf");
	prefetch_early(_metadata, self, &buf, fd);
	close(fd);
}

TEST_F_TIMEOUT(verbs, destroy_queues, TIMEOUT_S)
{
	end_pending(_metadata, self, true, true);
}

/* Others */

TEST_F_TIMEOUT(verbs, processes, TIMEOUT_S)
{
	struct traffic t = { };
	VERBS_SELF own;
	pid_t pid[4];
	unsigned int turn;
	long in = 0, n;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(pid); i++) {
		pid[i] = p2p_fork_child(_metadata);
		if (pid[i])
			continue;
		verbs_own(_metadata, self, &own);
		traffic_start(_metadata, &own, &t, RACE_PAGES);
		/* One gets the place that another one has left */
		for (turn = 0; turn < MOVES || !traffic_past(&t, rounds()); turn++) {
			touch(&t.theirs);
			n = p2p_gpu_to_vram(&own.gpu, t.theirs.p, t.theirs.len);
			ASSERT_LE(0, n);
			in += n;
			traffic_rest(&t);
		}
		EXPECT_LT((long)(2 * RACE_PAGES), in);
		traffic_stop(_metadata, &own, &t);
		_exit(0);
	}
	for (i = 0; i < ARRAY_SIZE(pid); i++)
		p2p_wait_child(_metadata, pid[i]);
}

/* Nothing of it stays; the fixture looks after VRAM */
TEST_F_TIMEOUT(verbs, killed, TIMEOUT_S)
{
	struct traffic t = { };
	int to_parent[2];
	VERBS_SELF own;
	pid_t pid;

	ASSERT_EQ(0, pipe(to_parent));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		verbs_own(_metadata, self, &own);
		traffic_start(_metadata, &own, &t, RACE_PAGES);
		traffic_wait(&t, 0);
		EXPECT_LT(0U, __atomic_load_n(&t.done, __ATOMIC_RELAXED));
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		while (!traffic_past(&t, ~0U)) {
			touch(&t.theirs);
			p2p_gpu_to_vram(&own.gpu, t.theirs.p, t.theirs.len);
			traffic_rest(&t);
		}
		_exit(1);
	}
	p2p_hear(_metadata, to_parent);
	p2p_kill_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));

	verbs_works(_metadata, self, 0);
}

/*
 * Regions of the memory of processes that are gone. Their tasks stay until somebody
 * waits for them. Their memory does not, and no region must become one of the
 * memory of a process that comes after them.
 */
#define DEAD	16

static pid_t dies_with_region(struct __test_metadata *_metadata,
			      VERBS_SELF *own, void *p, __u32 *lkey)
{
	int to_parent[2];
	struct ibv_mr *mr;
	siginfo_t end;
	pid_t pid;

	ASSERT_EQ(0, pipe(to_parent));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		mr = ibv_reg_mr(own->v.pd, own->implicit ? NULL : p,
				own->implicit ? SIZE_MAX : P2P_PAGE, VERBS_ODP);
		_exit(!mr || write(to_parent[1], &mr->lkey, sizeof(mr->lkey)) !=
			     sizeof(mr->lkey));
	}
	close(to_parent[1]);
	ASSERT_EQ((ssize_t)sizeof(*lkey), read(to_parent[0], lkey, sizeof(*lkey)));
	close(to_parent[0]);
	ASSERT_EQ(0, waitid(P_PID, pid, &end, WEXITED | WNOWAIT));
	return pid;
}

TEST_F_TIMEOUT(verbs, of_the_dead, TIMEOUT_S)
{
	struct ibv_sge sge = { .length = P2P_PAGE };
	pid_t pid, dead[DEAD], others[DEAD];
	__u32 lkeys[DEAD];
	VERBS_SELF own;
	size_t i;
	void *p;
	int ret;

	pid = p2p_fork_child(_metadata);
	if (pid) {
		p2p_wait_child(_metadata, pid);
		return;
	}

	/* Nobody who is left can end the regions but by the end of this process */
	verbs_own(_metadata, self, &own);
	p = p2p_alloc(P2P_PAGE);
	ASSERT_NE(NULL, p);
	sge.addr = (uintptr_t)p;
	for (i = 0; i < DEAD; i++)
		dead[i] = dies_with_region(_metadata, &own, p, &lkeys[i]);
	for (i = 0; i < DEAD; i++) {
		others[i] = p2p_fork_child(_metadata);
		if (!others[i])
			for (;;)
				pause();
	}
	for (i = 0; i < DEAD; i++) {
		sge.lkey = lkeys[i];
		ret = ibv_advise_mr(own.v.pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
				    IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
		EXPECT_NE(0, ret);
		EXPECT_NE(EOPNOTSUPP, ret);
	}
	for (i = 0; i < DEAD; i++) {
		p2p_kill_child(_metadata, others[i]);
		p2p_wait_child(_metadata, dead[i]);
	}
	_exit(0);
}

FIXTURE(verbs_unbind)
{
	VERBS_SELF verbs;
	char gpu[P2P_PCI_NAME];
	char nic[P2P_PCI_NAME];
};

#define UNBIND_SELF FIXTURE_DATA(verbs_unbind)

FIXTURE_VARIANT(verbs_unbind)
{
	FIXTURE_VARIANT(verbs) region;
};

FIXTURE_VARIANT_ADD(verbs_unbind, explicit) { { false } };
FIXTURE_VARIANT_ADD(verbs_unbind, implicit) { { true } };

FIXTURE_SETUP(verbs_unbind)
{
	verbs_setup(_metadata, &self->verbs, &variant->region);
	if (self->verbs.gpu.fd >= 0)
		ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->gpu));
}

FIXTURE_TEARDOWN_PARENT(verbs_unbind)
{
	/* Also if the test did not get that far */
	if (self->gpu[0])
		p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0);
	if (self->nic[0]) {
		p2p_pci_rescan();
		p2p_pci_bind(NIC_DRIVER, self->nic, -1);
	}
	verbs_teardown(_metadata, &self->verbs, NULL);
}

/* The NIC is of this driver, and there for tests; false, and the test is skipped */
static bool nic_may_go(struct __test_metadata *_metadata, UNBIND_SELF *self)
{
	char path[96], name[P2P_PCI_NAME];

	P2P_DISRUPTIVE(return false);
	if (self->verbs.v.software || verbs_pci_name(&self->verbs.v, name))
		SKIP(return false, "the RDMA device is no PCI device");
	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/" NIC_DRIVER "/%s", name);
	if (access(path, F_OK))
		SKIP(return false, "the RDMA device is not of " NIC_DRIVER);
	strcpy(self->nic, name);
	return true;
}

/* The GPU goes away under transfers: they go on, in host memory */
TEST_F_TIMEOUT(verbs_unbind, gpu, TIMEOUT_S)
{
	VERBS_SELF *verbs = &self->verbs;
	struct verbs_buf buf, data;
	struct p2ptest_gpu_info info;
	struct verbs_mark mark;
	struct traffic t = { };

	traffic_start(_metadata, verbs, &t, RACE_PAGES);
	traffic_wait(&t, 0);
	ASSERT_LE(0, p2p_gpu_to_vram(&verbs->gpu, t.theirs.p, t.theirs.len));
	ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
	EXPECT_EQ(-ENODEV, p2p_gpu_info(&verbs->gpu, &info));
	traffic_wait(&t, 1);

	/* Bound again: the old regions take to the new addresses */
	ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0));
	p2p_gpu_close(&verbs->gpu);
	ASSERT_EQ(0, p2p_gpu_open(&verbs->gpu, 0));
	ASSERT_EQ(0, p2p_gpu_window(&verbs->gpu, 0, verbs->info.vram_size));
	/* This takes the places that they had */
	verbs_buf_init(_metadata, verbs, &buf, RACE_PAGES, BEFORE, VERBS_ODP);
	verbs_buf_to_vram(_metadata, verbs, &buf);
	/* Not all of it stays there, or goes there at all, under transfers */
	ASSERT_LE(0, p2p_gpu_to_vram(&verbs->gpu, t.theirs.p, t.theirs.len));
	traffic_wait(&t, 1);
	traffic_end(_metadata, verbs, &t);
	verbs_buf_to_vram(_metadata, verbs, &t.theirs);
	verbs_mark(_metadata, verbs, &mark);
	verbs_copy(_metadata, verbs, IBV_WR_RDMA_WRITE, &t.mine, 0, &t.theirs, 0,
		   t.theirs.len);
	verbs_expect_met(_metadata, verbs, &mark, t.theirs.pages);
	verbs_buf_check(_metadata, verbs, &t.theirs);
	verbs_buf_check(_metadata, verbs, &buf);
	traffic_free(_metadata, &t);

	verbs_buf_init(_metadata, verbs, &data, RACE_PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, verbs, &buf);
	verbs_mark(_metadata, verbs, &mark);
	verbs_copy(_metadata, verbs, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_expect_met(_metadata, verbs, &mark, buf.pages);
	verbs_buf_check(_metadata, verbs, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* It takes its time, and then is as good as before */
static void nic_is_back(struct __test_metadata *_metadata, VERBS_SELF *verbs)
{
	verbs_works(_metadata, verbs, BIND_MS);
}

/* A context that was opened before the device went fails, even afterwards */
static void expect_gone(struct __test_metadata *_metadata,
			const struct verbs *v)
{
	static unsigned char data[8];
	struct ibv_device_attr attr;
	struct ibv_mr *mr;
	struct ibv_pd *pd;

	EXPECT_EQ(EIO, ibv_query_device(v->ctx, &attr));
	errno = 0;
	pd = ibv_alloc_pd(v->ctx);
	EXPECT_EQ(EIO, errno);
	EXPECT_EQ(NULL, pd);
	errno = 0;
	mr = ibv_reg_mr(v->pd, data, sizeof(data), VERBS_REMOTE);
	EXPECT_EQ(EIO, errno);
	EXPECT_EQ(NULL, mr);
}

/* A region of it: it can not be used, and only ends */
static void expect_gone_mr(struct __test_metadata *_metadata,
			   const struct verbs *v, struct verbs_buf *buf)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)buf->p,
		.length = P2P_PAGE,
		.lkey = buf->mr->lkey,
	};
	int ret;

	EXPECT_EQ(EIO, ibv_advise_mr(v->pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
				     IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	ret = ibv_dereg_mr(buf->mr);
	EXPECT_TRUE(!ret || ret == EIO) {
		TH_LOG("%s", strerror(ret));
	}
	buf->mr = NULL;
}

/* Is all of it @old or @new, by 64 bytes? From now on, it is what it should be. */
static void settle(struct __test_metadata *_metadata, const char *who,
		   struct verbs_buf *buf, const unsigned char *old,
		   const unsigned char *new)
{
	size_t i;

	for (i = 0; i < buf->len; i += 64) {
		ASSERT_TRUE(!memcmp(buf->p + i, old + i, 64) ||
			    !memcmp(buf->p + i, new + i, 64)) {
			TH_LOG("%s: page %zu, byte %zu is neither old nor new",
			       who, i / P2P_PAGE, i % P2P_PAGE);
		}
	}
	memcpy(buf->want + P2P_PAGE, buf->p, buf->len);
}

/*
 * The device has gone for good. Bytes that its last transfer has not written
 * are as they were before, and everybody sees the same bytes.
 */
static void traffic_lost(struct __test_metadata *_metadata, VERBS_SELF *self,
			 struct traffic *t)
{
	unsigned char *sent = malloc(t->mine.len);
	unsigned char *zero = calloc(1, t->mine.len);

	ASSERT_NE(NULL, sent);
	ASSERT_NE(NULL, zero);
	/* It has ended, or waits for what does not come */
	pthread_cancel(t->thread);
	ASSERT_EQ(0, pthread_join(t->thread, NULL));
	EXPECT_FALSE(t->wrong)
		TH_LOG("what was read is not what was written");
	memcpy(sent, t->mine.want + P2P_PAGE, t->mine.len);
	settle(_metadata, "written", &t->theirs, t->theirs.want + P2P_PAGE, sent);
	settle(_metadata, "read", &t->mine, zero, sent);
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, t->theirs.p, t->theirs.len));
	verbs_buf_check(_metadata, self, &t->theirs);
	verbs_buf_check(_metadata, self, &t->mine);
	expect_gone_mr(_metadata, &self->v, &t->theirs);
	expect_gone_mr(_metadata, &self->v, &t->mine);
	expect_gone(_metadata, &self->v);
	traffic_free(_metadata, t);
	free(sent);
	free(zero);
}

/* Somebody who uses a NIC that goes, and stays */
struct user {
	pid_t pid;
	int found;	/* a byte from here: it has been found again */
};

/*
 * He moves memory under transfers until the NIC has been found again, and has lost
 * nothing but the NIC. This returns when transfers run.
 */
static void user_start(struct __test_metadata *_metadata, VERBS_SELF *verbs,
		       struct user *user)
{
	const size_t half = RACE_PAGES / 2 * P2P_PAGE;
	struct pollfd found = { .events = POLLIN };
	int to_parent[2], to_child[2];
	struct traffic t = { };
	size_t first = 0;
	VERBS_SELF own;

	ASSERT_EQ(0, pipe(to_parent));
	ASSERT_EQ(0, pipe(to_child));
	user->pid = p2p_fork_child(_metadata);
	if (!user->pid) {
		verbs_own(_metadata, verbs, &own);
		traffic_start(_metadata, &own, &t, RACE_PAGES);
		traffic_wait(&t, 0);
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		found.fd = to_child[0];
		while (!poll(&found, 1, MOVE_MS)) {
			touch(&t.theirs);
			/* Halves change places: that shows what goes to an old place */
			ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, t.theirs.p + first,
						     half));
			first = half - first;
			ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, t.theirs.p + first,
						     half));
		}
		traffic_lost(_metadata, &own, &t);
		_exit(0);
	}
	p2p_hear(_metadata, to_parent);
	user->found = to_child[1];
}

static void user_end(struct __test_metadata *_metadata, VERBS_SELF *verbs,
		     struct user *user)
{
	ASSERT_EQ(1, write(user->found, "", 1));
	p2p_wait_child(_metadata, user->pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&verbs->gpu, 0));
}

/*
 * The NIC goes away under transfers, while two of its users go on moving memory. One is
 * killed, the other one has lost nothing but the NIC. When it is back, it is as good as
 * before.
 */
TEST_F_TIMEOUT(verbs_unbind, nic, TIMEOUT_S)
{
	struct user user, killed;

	if (!nic_may_go(_metadata, self))
		return;
	user_start(_metadata, &self->verbs, &user);
	user_start(_metadata, &self->verbs, &killed);
	ASSERT_EQ(0, p2p_pci_unbind(NIC_DRIVER, self->nic));
	p2p_sleep_ms(100);
	EXPECT_EQ(0, waitpid(user.pid, NULL, WNOHANG));
	EXPECT_EQ(0, waitpid(killed.pid, NULL, WNOHANG));
	p2p_kill_child(_metadata, killed.pid);
	user_end(_metadata, &self->verbs, &user);

	ASSERT_EQ(0, p2p_pci_bind(NIC_DRIVER, self->nic, -1));
	nic_is_back(_metadata, &self->verbs);
}

/* The same, but its PCI device goes as well */
TEST_F_TIMEOUT(verbs_unbind, nic_removed, TIMEOUT_S)
{
	struct user user;

	if (!nic_may_go(_metadata, self))
		return;
	user_start(_metadata, &self->verbs, &user);
	ASSERT_EQ(0, p2p_pci_attr_set(self->nic, "remove", "1"));
	p2p_sleep_ms(100);
	EXPECT_EQ(0, waitpid(user.pid, NULL, WNOHANG));
	expect_gone(_metadata, &self->verbs.v);
	ASSERT_EQ(0, p2p_pci_rescan());
	user_end(_metadata, &self->verbs, &user);
	nic_is_back(_metadata, &self->verbs);
	expect_gone(_metadata, &self->verbs.v);
}

/*
 * The NIC is reset, and forgets everything. mlx5 is not asked before: it notices when it
 * looks at the NIC's health the next time. It then begins anew, but not twice in a
 * minute: after a second reset it gives the NIC up until it is bound again.
 */
TEST_F_TIMEOUT(verbs_unbind, nic_reset, TIMEOUT_S)
{
	struct ibv_device_attr attr;
	struct user user;
	char method[64];
	struct verbs old;
	int i, again;

	if (!nic_may_go(_metadata, self))
		return;
	if (p2p_pci_attr_get(self->nic, "reset_method", method, sizeof(method)) ||
	    strncmp(method, "flr", strlen("flr")))
		SKIP(return, "the NIC has no function level reset");
	for (again = 0; again < 2; again++) {
		ASSERT_EQ(NULL, verbs_open(&old));
		user_start(_metadata, &self->verbs, &user);
		ASSERT_EQ(0, p2p_pci_attr_set(self->nic, "reset", "1"));
		for (i = 0; ibv_query_device(old.ctx, &attr) != EIO; i++) {
			ASSERT_GT(BIND_MS / 100, i)
				TH_LOG("the driver does not notice");
			p2p_sleep_ms(100);
		}
		EXPECT_EQ(0, waitpid(user.pid, NULL, WNOHANG));
		if (again) {
			ASSERT_EQ(0, p2p_pci_unbind(NIC_DRIVER, self->nic));
			ASSERT_EQ(0, p2p_pci_bind(NIC_DRIVER, self->nic, -1));
		}
		nic_is_back(_metadata, &self->verbs);
		user_end(_metadata, &self->verbs, &user);
		expect_gone(_metadata, &old);
	}
	expect_gone(_metadata, &self->verbs.v);
}

/* How many of these errors the root port above the NIC has seen, and -1 without AER */
static long errors_seen(const char *nic, const char *attr)
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "../../../aer_rootport_total_%s", attr);
	if (p2p_pci_attr_get(nic, path, text, sizeof(text)))
		return -1;
	return strtol(text, NULL, 10);
}

/* Does the kernel log this, from here on? */
static bool logged(int log, const char *what)
{
	char record[1024];
	ssize_t n;
	int i;

	for (i = 0; i < 100; i++) {
		while ((n = read(log, record, sizeof(record) - 1)) > 0) {
			record[n] = '\0';
			if (strstr(record, what))
				return true;
		}
		p2p_sleep_ms(100);
	}
	return false;
}

/*
 * Other memory that the NIC may reach. The driver lets go of it first: meanwhile pages
 * move under transfers.
 */
static void register_more(struct __test_metadata *_metadata, struct verbs *v)
{
	const size_t len = 64UL << 20;
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int i;

	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, madvise(p, len, MADV_NOHUGEPAGE));
	for (i = 0; i < 96; i++)
		ASSERT_NE(NULL, ibv_reg_mr(v->pd, p, len, VERBS_REMOTE));
	/* The regions keep the pages */
	ASSERT_EQ(0, munmap(p, len));
}

/*
 * The port above the NIC reports an error. mlx5 gives up what it has, the kernel resets
 * the NIC, and mlx5 begins anew. After a fatal error mlx5 tells the NIC nothing, so
 * that the NIC must be silent.
 */
TEST_F_TIMEOUT(verbs_unbind, nic_error, TIMEOUT_S)
{
	static const struct {
		const char *error, *attr;
	} errors[] = {
		{ "POISON_TLP", "err_nonfatal" },
		{ "MALF_TLP", "err_fatal" },
	};
	struct ibv_device_attr attr;
	unsigned int step;
	struct user user;
	struct verbs old;
	char answer[200];
	long before;
	int log, i;

	if (!nic_may_go(_metadata, self))
		return;
	if (!getenv("P2PTEST_HOTPLUG"))
		SKIP(return, "nobody outside lets ports report errors: P2PTEST_HOTPLUG is not set");
	for (step = 0; step < 2 * ARRAY_SIZE(errors); step++) {
		const char *error = errors[step / 2].error;
		bool busy = step % 2;

		before = errors_seen(self->nic, errors[step / 2].attr);
		ASSERT_LE(0, before)
			TH_LOG("the kernel has no AER");
		log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		ASSERT_LE(0, log);
		ASSERT_LE(0, lseek(log, 0, SEEK_END));
		ASSERT_EQ(NULL, verbs_open(&old));
		register_more(_metadata, &old);
		if (busy)
			user_start(_metadata, &self->verbs, &user);
		p2p_outside("error", "nic0", error, answer, sizeof(answer));
		ASSERT_STREQ("ok", answer);
		for (i = 0; ibv_query_device(old.ctx, &attr) != EIO; i++) {
			ASSERT_GT(BIND_MS / 100, i)
				TH_LOG("the driver does not hear of %s", error);
			p2p_sleep_ms(100);
		}
		if (busy)
			EXPECT_EQ(0, waitpid(user.pid, NULL, WNOHANG));
		nic_is_back(_metadata, &self->verbs);
		if (busy)
			user_end(_metadata, &self->verbs, &user);
		expect_gone(_metadata, &old);
		EXPECT_EQ(before + 1, errors_seen(self->nic, errors[step / 2].attr));
		/* In this order */
		EXPECT_TRUE(logged(log, "mlx5_pci_err_detected"));
		EXPECT_TRUE(logged(log, "mlx5_pci_slot_reset"));
		EXPECT_TRUE(logged(log, "device recovery successful"))
			TH_LOG("%s", error);
		close(log);
	}
	expect_gone(_metadata, &self->verbs.v);
}

TEST_HARNESS_MAIN
