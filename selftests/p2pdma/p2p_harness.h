/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_harness.h - what all fixtures share, whatever the device is that reaches
 * for the GPU's memory
 *
 * Time: the DMA engine of edu takes 100 ms for a transfer, which has 2 KiB or what
 * max_transfer of the driver says, and each byte is moved twice, from memory to
 * the device and from there to the driver. Run the guest with "-icount
 * shift=0,sleep=off": as soon as all CPUs are idle, QEMU skips to the next timer,
 * and DMA costs next to nothing. But the guest's clock shows all of it: 16 MiB
 * written and read back are about an hour. So limits in guest time have to be
 * large, and whoever starts the guest has to limit real time. For the same reason
 * threads that wait sleep, and do not spin: one that spins makes guest time real.
 */
#ifndef P2P_HARNESS_H
#define P2P_HARNESS_H

#include "../kselftest_harness.h"
#include "p2ptest.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * For each test, in seconds of the guest's clock. The program's own limit is in the
 * file settings, and has to be so much longer than the program takes that a test that
 * hangs ends first: the kernel's runner would leave its processes behind.
 */
#define TIMEOUT_S	p2p_timeout()
#ifndef TIMEOUT_DEFAULT_S
#define TIMEOUT_DEFAULT_S	1800
#endif

static inline int p2p_timeout(void)
{
	const char *seconds = getenv("P2PTEST_TIMEOUT");

	return seconds ? atoi(seconds) : TIMEOUT_DEFAULT_S;
}

/*
 * In the program itself, which forks for each test: what the last test changed is put
 * back before the next one, and at the end. It does not matter how the test ends, nor
 * how the program does, unless that is by SIGKILL.
 */
static struct {
	pid_t program;
	pid_t test;	/* also a process group: see __run_test() */
} *p2p_run;

static void p2p_before_fork(void)
{
	if (getpid() != p2p_run->program)
		return;
	p2p_run->test = 0;
	p2p_put_back();
}

static void p2p_after_fork(void)
{
	pid_t parent = getppid();

	if (parent == p2p_run->program)
		p2p_run->test = getpid();
	else if (parent != p2p_run->test)
		return;
	/* Nobody else ends it when the program is killed */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void p2p_at_signal(int sig)
{
	if (getpid() == p2p_run->program) {
		if (p2p_run->test && !kill(-p2p_run->test, SIGKILL))
			waitpid(p2p_run->test, NULL, 0);
		p2p_put_back();
	}
	signal(sig, SIG_DFL);
	raise(sig);
}

static void __attribute__((constructor(102))) p2p_run_start(void)
{
	p2p_run = mmap(NULL, sizeof(*p2p_run), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p2p_run == MAP_FAILED)
		abort();
	p2p_run->program = getpid();
	pthread_atfork(p2p_before_fork, NULL, p2p_after_fork);
	signal(SIGINT, p2p_at_signal);
	signal(SIGTERM, p2p_at_signal);
}

static void __attribute__((destructor)) p2p_run_end(void)
{
	if (getpid() == p2p_run->program)
		p2p_put_back();
}

/*
 * For a test that changes how the whole machine works, or takes away devices that are
 * no test devices: it is only for a machine that serves nothing but tests.
 */
#define P2P_DISRUPTIVE(statement) do {					\
	if (!getenv("P2PTEST_DISRUPTIVE"))				\
		P2P_SKIP(statement, "P2PTEST_DISRUPTIVE is not set");	\
} while (0)

/* The C library may be older */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

/* What every test needs; false without that, and the test is skipped */
static inline bool p2p_start(struct __test_metadata *_metadata)
{
	if (geteuid())
		SKIP(return false, "only root can use the devices");
	if (sysconf(_SC_PAGESIZE) != (long)P2P_PAGE)
		SKIP(return false, "pages are not of 4 KiB");
	return true;
}

/* Seeds: what was there before, what is written, and what others have */
#define BEFORE	100
#define AFTER	200
#define OTHER	300

/*
 * A transfer takes TRANSFER_MS of the guest's time, and a page 200 to 400 ms.
 * So a sleep can choose a moment in the middle of the transfer of LONG_PAGES.
 */
#define TRANSFER_MS	100
#define LONG_PAGES	64U
#define MIDDLE_MS	5000

/* A buffer, where its pages are, and what the NIC calls it */
struct p2p_buf {
	unsigned char *p;
	size_t len;
	size_t pages;
	__u32 handle;
};

static inline bool p2p_peer_path(enum p2p_expect path)
{
	return path == P2P_EXPECT_BUS_ADDR || path == P2P_EXPECT_HOST_BRIDGE;
}

static inline int p2p_peer_kind(enum p2p_expect path)
{
	return path == P2P_EXPECT_BUS_ADDR ? P2PTEST_PAGE_BUS_ADDR :
					     P2PTEST_PAGE_HOST_BRIDGE;
}

/* What a device private page meets, if only the path matters */
static inline int p2p_path_reason(enum p2p_expect path)
{
	switch (path) {
	case P2P_EXPECT_BUS_ADDR:
		return P2PTEST_REASON_BUS_ADDR;
	case P2P_EXPECT_HOST_BRIDGE:
		return P2PTEST_REASON_HOST_BRIDGE;
	default:
		return P2PTEST_REASON_TOPOLOGY;
	}
}

static inline void p2p_expect_pattern(struct __test_metadata *_metadata,
				      const char *who, const void *buf,
				      __u64 seed, size_t pos, size_t len)
{
	size_t same = p2p_compare(buf, seed, pos, len);

	EXPECT_EQ(len, same) {
		TH_LOG("%s: byte %zu of %zu is wrong (page %zu, byte %zu)", who,
		       same, len, (pos + same) / P2P_PAGE,
		       (pos + same) % P2P_PAGE);
	}
}

/* SKIP() for a test that may have failed by now, which SKIP() would hide */
#define P2P_SKIP(statement, fmt, ...) do {		\
	if (!_metadata->exit_code)			\
		SKIP((void)0, fmt, ##__VA_ARGS__);	\
	statement;					\
} while (0)

/* Memory that holds pages 0.. of @seed */
static inline void p2p_buf_alloc(struct __test_metadata *_metadata,
				 struct p2p_buf *buf, size_t pages, __u64 seed)
{
	buf->pages = pages;
	buf->len = pages * P2P_PAGE;
	buf->p = p2p_alloc(buf->len);
	ASSERT_NE(NULL, buf->p);
	p2p_fill(buf->p, seed, 0, buf->len);
}

/* The same, of one huge page; false if there is none, and the test is skipped */
static inline bool p2p_buf_alloc_huge(struct __test_metadata *_metadata,
				      struct p2p_buf *buf, __u64 seed)
{
	buf->pages = P2P_HUGE / P2P_PAGE;
	buf->len = P2P_HUGE;
	buf->p = p2p_alloc_huge(buf->len);
	ASSERT_NE(NULL, buf->p);
	p2p_fill(buf->p, seed, 0, buf->len);
	if (p2p_huge_bytes(buf->p) != (long)P2P_HUGE)
		P2P_SKIP(return false, "the kernel gives no huge pages");
	return true;
}

#define P2P_FAIL_PAGE_ALLOC "/sys/kernel/debug/fail_page_alloc/"

/*
 * From now on, huge pages of host memory can not be allocated, or can again; see
 * Documentation/fault-injection/fault-injection.rst. False if this kernel can not
 * let allocations fail, and the test is skipped.
 */
static inline bool p2p_huge_pages_fail(struct __test_metadata *_metadata,
				       bool fail)
{
	const char *const values[][2] = {
		{ P2P_FAIL_PAGE_ALLOC "ignore-gfp-highmem", "N" },
		{ P2P_FAIL_PAGE_ALLOC "ignore-gfp-wait", "N" },
		{ P2P_FAIL_PAGE_ALLOC "verbose", "0" },
		{ P2P_FAIL_PAGE_ALLOC "min-order", fail ? "9" : "0" },
		{ P2P_FAIL_PAGE_ALLOC "times", fail ? "-1" : "1" },
		{ P2P_FAIL_PAGE_ALLOC "probability", fail ? "100" : "0" },
	};
	size_t i;
	int ret;

	P2P_DISRUPTIVE(return false);
	for (i = 0; i < ARRAY_SIZE(values); i++) {
		/* The probability is set last, and reset first */
		const char *const *value =
			values[fail ? i : ARRAY_SIZE(values) - 1 - i];

		ret = p2p_change(value[0], value[1]);
		if (ret == -ENOENT)
			SKIP(return false, "no CONFIG_FAIL_PAGE_ALLOC");
		ASSERT_EQ(0, ret);
	}
	return true;
}

static inline void p2p_buf_cpu_read(struct __test_metadata *_metadata,
				    struct p2p_buf *buf, __u64 seed)
{
	p2p_expect_pattern(_metadata, "CPU read", buf->p, seed, 0, buf->len);
}

static inline struct p2ptest_gpu_info
p2p_info(struct __test_metadata *_metadata, const struct p2p_gpu *gpu)
{
	struct p2ptest_gpu_info info = {};

	EXPECT_EQ(0, p2p_gpu_info(gpu, &info));
	return info;
}

/* Pages that moved in either direction since @from */
static inline __u64 p2p_moves(struct __test_metadata *_metadata,
			      const struct p2p_gpu *gpu,
			      const struct p2ptest_gpu_info *from)
{
	struct p2ptest_gpu_info now = p2p_info(_metadata, gpu);

	return now.migrated_in + now.migrated_out - from->migrated_in -
	       from->migrated_out;
}

/* Test GPU 0, which nobody else uses, with all of its VRAM in the window */
static inline void p2p_gpu_setup(struct __test_metadata *_metadata,
				 struct p2p_gpu *gpu,
				 struct p2ptest_gpu_info *info)
{
	ASSERT_EQ(0, p2p_gpu_open(gpu, 0));
	ASSERT_EQ(0, p2p_gpu_info(gpu, info));
	ASSERT_EQ(0U, info->pages_used)
		TH_LOG("something else uses the test GPU");
	ASSERT_EQ(0, p2p_gpu_inject(gpu, false));
	ASSERT_EQ(0, p2p_gpu_window(gpu, 0, info->vram_size));
}

/* Put back what p2p_gpu_setup() found, when no page of VRAM is in use any more */
static inline void p2p_gpu_teardown(struct __test_metadata *_metadata,
				    const struct p2ptest_gpu_info *info)
{
	struct p2p_gpu gpu;

	EXPECT_EQ(0, p2p_gpu_open(&gpu, 0)) {
		TH_LOG("the test GPU has not come back");
		return;
	}
	EXPECT_EQ(0, p2p_gpu_inject(&gpu, false));
	EXPECT_EQ(0, p2p_gpu_wait_used(&gpu, 0)) {
		TH_LOG("pages of VRAM are still in use: %llu",
		       p2p_info(_metadata, &gpu).pages_used);
	}
	EXPECT_EQ(0, p2p_gpu_window(&gpu, info->window_start,
				    info->window_size));
	p2p_gpu_close(&gpu);
}

/*
 * Unload a driver, for a test that loads it with other parameters; false if that
 * cannot be done, and the test is skipped
 */
static inline bool p2p_driver_unload(struct __test_metadata *_metadata,
				     const char *driver)
{
	int ret;

	if (!getenv("P2PTEST_MODDIR"))
		SKIP(return false,
		     "P2PTEST_MODDIR does not say where modules are");
	ret = p2p_module_unload(driver);
	if (ret == -ENOENT)
		SKIP(return false, "%s is no module", driver);
	ASSERT_EQ(0, ret);
	return true;
}

/* With these parameters the driver has to refuse its devices */
static inline void p2p_driver_refuses(struct __test_metadata *_metadata,
				      const char *driver, const char *params)
{
	ASSERT_EQ(0, p2p_module_reload(driver, params));
	/* Loading it has probed them */
	EXPECT_EQ(0, p2p_dev_count(driver)) {
		TH_LOG("%s accepts %s", driver, params);
	}
}

/* A child that does not outlive the test */
static inline pid_t p2p_fork_child(struct __test_metadata *_metadata)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* Wait for a byte from a child, which does not come if the child dies before */
static inline void p2p_hear(struct __test_metadata *_metadata, int to_parent[2])
{
	char c;

	/* Otherwise the parent would be one of those who can still write */
	if (to_parent[1] >= 0)
		close(to_parent[1]);
	to_parent[1] = -1;
	ASSERT_EQ(1, read(to_parent[0], &c, 1))
		TH_LOG("the child has ended");
}

static inline void p2p_wait_child(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

static inline void p2p_kill_child(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	ASSERT_EQ(0, kill(pid, SIGKILL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status))
		TH_LOG("it had finished before it was killed");
}

/* A transfer of a whole buffer in a thread of its own, for somebody to disturb */
struct p2p_transfer {
	pthread_t thread;
	void *(*run)(void *transfer);
	void *self;		/* the fixture that @run uses */
	struct p2p_buf *buf;
	unsigned char *data;	/* written, or read */
	bool write;
	int ret;
	struct p2ptest_nic_xfer xfer;
};

/* Returns in the middle of the transfer */
static inline void p2p_transfer_start(struct __test_metadata *_metadata,
				      struct p2p_transfer *t,
				      struct p2p_buf *buf, bool write)
{
	t->buf = buf;
	t->write = write;
	t->data = calloc(1, buf->len);
	ASSERT_NE(NULL, t->data);
	if (write)
		p2p_fill(t->data, AFTER, 0, buf->len);
	ASSERT_EQ(0, pthread_create(&t->thread, NULL, t->run, t));
	p2p_sleep_ms(MIDDLE_MS);
}

static inline void p2p_transfer_end(struct __test_metadata *_metadata,
				    struct p2p_transfer *t)
{
	ASSERT_EQ(0, pthread_join(t->thread, NULL));
	free(t->data);
}

#endif /* P2P_HARNESS_H */
