// SPDX-License-Identifier: GPL-2.0
/*
 * Test of nouveau's device private memory when the GPU loses its power, and all
 * that is in video memory: by a suspend of the machine, and by runtime PM
 *
 * What ./hmm_p2p_nouveau_test.c says applies to this one. P2PTEST_SUSPEND is a
 * command that suspends the machine and returns 0 when it has resumed, such as
 * "rtcwake -m mem -s 5". Runtime PM needs nouveau's parameter runpm=1.
 */
#include "nouveau_fixture.h"

/* How long the GPU may take until it is off, guest's time */
#define OFF_MS		20000
/* If it must stay on, it has as long to go off all the same */
#define STAYS_MS	2000

/* Idle as long as that, it goes off; the first one is longer than a test takes */
#define AWAKE		"600000"
#define AT_ONCE		"0"

/* What each user of a busy GPU has to get done, in so many seconds at most */
#define BUSY_ROUNDS	3
#define BUSY_MAX	60

/* So often a page is asked to move that somebody holds for a moment */
#define MOVES		10

/* After so many suspends the copy engine should have failed */
#define ROUNDS		20

FIXTURE(nouveau_power)
{
	int fd;
	struct p2p_nic nic;
	enum p2p_expect path;
	bool runtime;
	const char *suspend;
	char gpu[P2P_PCI_NAME];
};

#define SELF FIXTURE_DATA(nouveau_power)

FIXTURE_VARIANT(nouveau_power)
{
	bool runtime;
};

FIXTURE_VARIANT_ADD(nouveau_power, suspend) { .runtime = false };
FIXTURE_VARIANT_ADD(nouveau_power, runtime) { .runtime = true };

static bool attr_is(const SELF *self, const char *attr, const char *value)
{
	char text[32];

	return !p2p_pci_attr_get(self->gpu, attr, text, sizeof(text)) &&
	       !strcmp(text, value);
}

static long attr_number(const SELF *self, const char *attr)
{
	char text[32];

	if (p2p_pci_attr_get(self->gpu, attr, text, sizeof(text)))
		return -1;
	return strtol(text, NULL, 10);
}

static void off_after(struct __test_metadata *_metadata, const SELF *self,
		      const char *ms)
{
	char path[P2P_PATH];

	snprintf(path, sizeof(path),
		 "/sys/bus/pci/devices/%s/power/autosuspend_delay_ms", self->gpu);
	ASSERT_EQ(0, p2p_change(path, ms));
}

FIXTURE_SETUP(nouveau_power)
{
	int path = p2p_expect(0);

	self->nic.fd = -1;
	self->runtime = variant->runtime;
	self->fd = nouveau_start(_metadata);
	if (self->fd < 0)
		return;
	ASSERT_EQ(0, nouveau_pci_name(self->fd, self->gpu));
	self->suspend = getenv("P2PTEST_SUSPEND");
	if (!self->runtime && !self->suspend)
		SKIP(return, "P2PTEST_SUSPEND does not say how to suspend");
	if (self->runtime && !attr_is(self, "power/control", "auto"))
		SKIP(return, "nouveau has no runtime PM: runpm=1");
	if (!p2p_nic_count())
		SKIP(return, "no test NIC: no /dev/" P2P_NIC_DRIVER "<N>");
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	if (path == P2P_EXPECT_UNKNOWN)
		SKIP(return, "P2PTEST_EXPECT does not say what path there is");
	self->path = path;
	ASSERT_EQ(0, p2p_nic_open(&self->nic, 0));
	if (attr_is(self, "power/control", "auto"))
		off_after(_metadata, self, AWAKE);
}

FIXTURE_TEARDOWN(nouveau_power)
{
	if (self->nic.fd >= 0)
		p2p_nic_close(&self->nic);
	if (self->fd >= 0)
		close(self->fd);
}

/*
 * Lets the GPU lose its power, and says whether it did. After a suspend of the
 * machine it is on again; with runtime PM it is off until somebody needs it.
 */
static bool goes_off_in(struct __test_metadata *_metadata, SELF *self, int ms)
{
	bool off = false;
	int i;

	if (!self->runtime)
		return !system(self->suspend);
	off_after(_metadata, self, AT_ONCE);
	for (i = 0; i < ms / 20 && !off; i++) {
		p2p_sleep_ms(20);
		off = attr_is(self, "power/runtime_status", "suspended");
	}
	off_after(_metadata, self, AWAKE);
	return off;
}

static bool goes_off(struct __test_metadata *_metadata, SELF *self)
{
	return goes_off_in(_metadata, self, OFF_MS);
}

static void power_off(struct __test_metadata *_metadata, SELF *self)
{
	ASSERT_TRUE(goes_off(_metadata, self));
	if (self->runtime)
		EXPECT_TRUE(attr_is(self, "power_state", "D3hot") ||
			    attr_is(self, "power_state", "D3cold"));
}

/* Nothing that is in host memory needs the GPU */
static void still_off(struct __test_metadata *_metadata, SELF *self)
{
	if (self->runtime)
		EXPECT_TRUE(attr_is(self, "power/runtime_status", "suspended"));
}

static void is_home(struct __test_metadata *_metadata, struct p2p_buf *buf,
		    __u64 seed)
{
	EXPECT_EQ(0, nouveau_resident(buf->p, buf->len));
	p2p_buf_cpu_read(_metadata, buf, seed);
}

/* Pages of video memory are at home, and can go there again */
TEST_F_TIMEOUT(nouveau_power, contents, TIMEOUT_S)
{
	struct p2p_buf buf, huge;
	int i;

	/* More than nouveau's push buffer has room for at once */
	p2p_buf_alloc(_metadata, &buf, 4096, BEFORE);
	if (!p2p_buf_alloc_huge(_metadata, &huge, OTHER))
		return;
	for (i = 0; i < 2; i++) {
		to_vram(_metadata, self->fd, &buf);
		to_vram(_metadata, self->fd, &huge);
		power_off(_metadata, self);
		is_home(_metadata, &buf, BEFORE + i);
		is_home(_metadata, &huge, OTHER + i);
		p2p_fill(buf.p, BEFORE + i + 1, 0, buf.len);
		p2p_fill(huge.p, OTHER + i + 1, 0, huge.len);
		still_off(_metadata, self);
	}
	buf_free(_metadata, &buf);
	buf_free(_metadata, &huge);
	still_off(_metadata, self);
}

/* A huge page that has lost one of its pages is many by itself */
TEST_F_TIMEOUT(nouveau_power, hole, TIMEOUT_S)
{
	const size_t hole = 100 * P2P_PAGE;
	struct p2p_buf buf;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	to_vram(_metadata, self->fd, &buf);
	ASSERT_EQ(0, munmap(buf.p + hole, P2P_PAGE));
	ASSERT_EQ((long)buf.pages - 1, nouveau_resident(buf.p, buf.len));
	power_off(_metadata, self);
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	p2p_expect_pattern(_metadata, "before", buf.p, BEFORE, 0, hole);
	p2p_expect_pattern(_metadata, "after", buf.p + hole + P2P_PAGE, BEFORE,
			   hole + P2P_PAGE, buf.len - hole - P2P_PAGE);
	buf_free(_metadata, &buf);
	still_off(_metadata, self);
}

/* Pages of a child, which has no file of the GPU's, and of a closed file */
TEST_F_TIMEOUT(nouveau_power, without_file, TIMEOUT_S)
{
	struct p2p_buf buf;
	int pipes[2];
	char byte;
	pid_t pid;

	ASSERT_EQ(0, pipe(pipes));
	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		close(self->fd);
		if (read(pipes[0], &byte, 1) != 1)
			_exit(2);
		_exit(p2p_compare(buf.p, BEFORE, 0, buf.len) != buf.len);
	}
	ASSERT_EQ(0, close(self->fd));
	self->fd = -1;
	power_off(_metadata, self);
	is_home(_metadata, &buf, BEFORE);
	p2p_fill(buf.p, AFTER, 0, buf.len);
	ASSERT_EQ(1, write(pipes[1], "", 1));
	p2p_wait_child(_metadata, pid);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	buf_free(_metadata, &buf);
	still_off(_metadata, self);
}

static unsigned long peers(struct __test_metadata *_metadata, SELF *self,
			   struct p2p_buf *buf)
{
	struct p2p_view view = {};

	EXPECT_EQ(0, p2p_nic_view(&self->nic, buf->handle, buf->p, buf->len,
				  &view));
	return view.peer;
}

/* The NIC reaches pages in video memory before and after, and not in between */
TEST_F_TIMEOUT(nouveau_power, nic, TIMEOUT_S)
{
	const bool peer = p2p_peer_path(self->path);
	unsigned char data[2 * P2P_PAGE];
	struct p2p_buf buf;
	int i;

	p2p_buf_alloc(_metadata, &buf, 2, BEFORE);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	for (i = 0; i < 2; i++) {
		to_vram(_metadata, self->fd, &buf);
		EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					  buf.len, NULL));
		p2p_expect_pattern(_metadata, "NIC read", data, BEFORE + i, 0,
				   buf.len);
		p2p_fill(data, AFTER + i, 0, buf.len);
		EXPECT_EQ(0, p2p_nic_write(&self->nic, buf.handle, buf.p, data,
					   buf.len, NULL));
		EXPECT_EQ(peer ? buf.pages : 0, peers(_metadata, self, &buf));

		power_off(_metadata, self);
		EXPECT_EQ(0UL, peers(_metadata, self, &buf));
		EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
		EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					  buf.len, NULL));
		p2p_expect_pattern(_metadata, "NIC read at home", data,
				   AFTER + i, 0, buf.len);
		EXPECT_EQ(0UL, peers(_metadata, self, &buf));
		still_off(_metadata, self);
		p2p_fill(buf.p, BEFORE + i + 1, 0, buf.len);
	}
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	buf_free(_metadata, &buf);
}

/*
 * A huge page that finds none in host memory stays in video memory, and the GPU
 * keeps its power. It works as before then, and can lose its power later.
 */
TEST_F_TIMEOUT(nouveau_power, no_huge_page, TIMEOUT_S)
{
	struct p2p_buf buf, huge;

	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	if (!p2p_buf_alloc_huge(_metadata, &huge, OTHER))
		return;
	to_vram(_metadata, self->fd, &huge);
	if (!p2p_huge_pages_fail(_metadata, true))
		return;
	EXPECT_FALSE(goes_off_in(_metadata, self, STAYS_MS));
	p2p_huge_pages_fail(_metadata, false);
	EXPECT_TRUE(attr_is(self, "power_state", "D0"));
	EXPECT_EQ((long)huge.pages, nouveau_resident(huge.p, huge.len));
	to_vram(_metadata, self->fd, &buf);
	power_off(_metadata, self);
	is_home(_metadata, &buf, BEFORE);
	is_home(_metadata, &huge, OTHER);
	still_off(_metadata, self);
	buf_free(_metadata, &buf);
	buf_free(_metadata, &huge);
}

/*
 * The GPU's copy engine fails at some time, which is up to whoever started the
 * guest: while pages come home, if the test is to be of use. Then the GPU keeps
 * its power, and a signal tells of each page that is lost.
 */
TEST_F_TIMEOUT(nouveau_power, copy_engine_fails, TIMEOUT_S)
{
	struct p2p_buf buf;
	int i, status;

	if (!getenv("P2PTEST_GPU_DIES"))
		SKIP(return, "P2PTEST_GPU_DIES does not say that the GPU does");
	for (i = 0; i < ROUNDS; i++) {
		p2p_buf_alloc(_metadata, &buf, 16, BEFORE + i);
		to_vram(_metadata, self->fd, &buf);
		if (!goes_off(_metadata, self))
			break;
		is_home(_metadata, &buf, BEFORE + i);
		buf_free(_metadata, &buf);
	}
	ASSERT_LT(i, ROUNDS)
		TH_LOG("the copy engine works");
	EXPECT_TRUE(attr_is(self, "power_state", "D0"));
	EXPECT_EQ((long)buf.pages, nouveau_resident(buf.p, buf.len));
	status = look(_metadata, &buf, BEFORE + i);
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	buf_free(_metadata, &buf);
}

/* A thread that moves memory to video memory when the others do */
struct mover {
	pthread_t thread;
	pthread_barrier_t *start;
	int fd, err;
	bool resident;
	struct p2p_buf buf;
};

static void *mover_run(void *arg)
{
	struct mover *m = arg;
	int i;

	pthread_barrier_wait(m->start);
	/*
	 * A page stays where it is while anybody else holds a reference, and
	 * no error says so. The lru_add_drain_all() of another thread's
	 * migration holds one for a moment.
	 */
	for (i = 0; i < MOVES && !m->err && !m->resident; i++) {
		m->err = nouveau_to_vram(m->fd, m->buf.p, m->buf.len);
		m->resident = nouveau_resident(m->buf.p, m->buf.len) == 1;
	}
	return NULL;
}

/* The video memory that it takes to move a page from each of @count threads */
static long vram_for(struct __test_metadata *_metadata, SELF *self,
		     unsigned int count)
{
	pthread_barrier_t start;
	struct mover movers[4];
	unsigned int i;
	long used;

	/* Nothing is left there, and the GPU is on again. */
	power_off(_metadata, self);
	EXPECT_EQ(0, nouveau_flush(self->fd));
	used = nouveau_vram_used(self->fd);
	EXPECT_LT(0, used);

	EXPECT_EQ(0, pthread_barrier_init(&start, NULL, count));
	for (i = 0; i < count; i++) {
		struct mover *m = &movers[i];

		*m = (struct mover){ .start = &start, .fd = self->fd };
		p2p_buf_alloc(_metadata, &m->buf, 1, BEFORE);
		ASSERT_EQ(0, pthread_create(&m->thread, NULL, mover_run, m));
	}
	for (i = 0; i < count; i++) {
		struct mover *m = &movers[i];

		ASSERT_EQ(0, pthread_join(m->thread, NULL));
		EXPECT_EQ(0, m->err);
		EXPECT_TRUE(m->resident);
		buf_free(_metadata, &m->buf);
	}
	pthread_barrier_destroy(&start);
	return nouveau_vram_used(self->fd) - used;
}

/* Threads that come at once share the memory that nouveau takes for pages */
TEST_F_TIMEOUT(nouveau_power, at_once, TIMEOUT_S)
{
	long one = vram_for(_metadata, self, 1);
	int i;

	EXPECT_LT(0, one);
	for (i = 0; i < 3; i++)
		EXPECT_EQ(one, vram_for(_metadata, self, 4));
}

/* A thread whose memory moves to video memory, and is used from everywhere */
struct user {
	pthread_t thread;
	const SELF *self;
	struct p2p_buf buf;
	bool nic;
	int rounds;
	const char *wrong;
};

static bool stop;

static const char *user_round(struct user *u, __u64 seed)
{
	const struct p2p_nic *nic = &u->self->nic;
	struct p2p_buf *buf = &u->buf;
	unsigned char data[P2P_PAGE];
	size_t pos;

	if (nouveau_to_vram(u->self->fd, buf->p, buf->len))
		return "it does not move to video memory";
	for (pos = 0; u->nic && pos < buf->len; pos += P2P_PAGE) {
		if (p2p_nic_read(nic, buf->handle, buf->p + pos, data, P2P_PAGE,
				 NULL))
			return "the NIC can not read";
		if (p2p_compare(data, seed, pos, P2P_PAGE) != P2P_PAGE)
			return "the NIC reads something else";
		p2p_fill(data, seed + 1, pos, P2P_PAGE);
		if (p2p_nic_write(nic, buf->handle, buf->p + pos, data,
				  P2P_PAGE, NULL))
			return "the NIC can not write";
	}
	if (p2p_compare(buf->p, seed + u->nic, 0, buf->len) != buf->len)
		return "the CPU reads something else";
	p2p_fill(buf->p, seed + 1, 0, buf->len);
	return NULL;
}

static void *user_run(void *arg)
{
	struct user *u = arg;

	while (!u->wrong && !__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		u->wrong = user_round(u, BEFORE + u->rounds);
		/* Nobody needs to wait for the others any more. */
		if (u->wrong)
			__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
		else
			__atomic_fetch_add(&u->rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static bool all_went_on(struct user *users, size_t count, int rounds)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (__atomic_load_n(&users[i].rounds, __ATOMIC_RELAXED) < rounds)
			return false;
	}
	return true;
}

/* The power goes while some threads use the GPU, in whatever moment that is */
TEST_F_TIMEOUT(nouveau_power, busy, TIMEOUT_S)
{
	struct user users[3];
	long before, off = 0;
	size_t i;

	before = attr_number(self, "power/runtime_suspended_time");
	for (i = 0; i < ARRAY_SIZE(users); i++) {
		struct user *u = &users[i];

		*u = (struct user){ .self = self, .nic = i == 0 };
		p2p_buf_alloc(_metadata, &u->buf, u->nic ? 2 : 16, BEFORE);
		ASSERT_EQ(0, p2p_nic_reg(&self->nic, u->buf.p, u->buf.len,
					 P2PTEST_NIC_MR_WRITE, &u->buf.handle));
		ASSERT_EQ(0, pthread_create(&u->thread, NULL, user_run, u));
	}
	if (self->runtime)
		off_after(_metadata, self, AT_ONCE);
	for (i = 0; i < BUSY_MAX && !__atomic_load_n(&stop, __ATOMIC_RELAXED);
	     i++) {
		p2p_sleep_ms(1000);
		if (!self->runtime)
			power_off(_metadata, self);
		off = attr_number(self, "power/runtime_suspended_time") -
		      before;
		if (i >= 2 && (!self->runtime || off > 0) &&
		    all_went_on(users, ARRAY_SIZE(users), BUSY_ROUNDS))
			break;
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < ARRAY_SIZE(users); i++) {
		ASSERT_EQ(0, pthread_join(users[i].thread, NULL));
		EXPECT_EQ(NULL, users[i].wrong)
			TH_LOG("user %zu, round %d: %s", i, users[i].rounds,
			       users[i].wrong);
		EXPECT_LE(BUSY_ROUNDS, users[i].rounds);
		EXPECT_EQ(0, p2p_nic_dereg(&self->nic, users[i].buf.handle));
		buf_free(_metadata, &users[i].buf);
	}
	if (self->runtime)
		EXPECT_LT(0, off);
	TH_LOG("%d rounds, off for %ld ms", users[1].rounds, off);
}

TEST_HARNESS_MAIN
