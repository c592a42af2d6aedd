// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: the rest of memory management,
 * and processes that look into others
 *
 * Pages in VRAM have no struct page that these could use, so they leave them where
 * they are or bring them home. Memory that the NIC reaches must not be lost,
 * whoever merges, swaps, limits, collapses, locks, watches, traces or dumps it.
 */
#define _GNU_SOURCE
#include "p2p_fixture.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* What of this process is merged */
#define KSM_STAT	"/proc/self/ksm_stat"

/* Only a kernel with userfaultfd has it */
#define UFFD_SYSCTL	"/proc/sys/vm/unprivileged_userfaultfd"

#define PAGES	8U
#define LEN	(PAGES * P2P_PAGE)

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

/* Half in VRAM, and the NIC has written all of it */
static void half_init(struct __test_metadata *_metadata, P2P_SELF *self,
		      struct p2p_buf *buf)
{
	p2p_buf_init(_metadata, self, buf, PAGES, BEFORE);
	ASSERT_EQ((long)PAGES / 2,
		  p2p_gpu_to_vram(&self->gpu, buf->p, buf->len / 2));
	p2p_buf_nic_write(_metadata, self, buf, AFTER);
	EXPECT_EQ(p2p_peer_path(self->path) ? PAGES / 2 : 0,
		  p2p_gpu_resident(&self->gpu, buf->p, buf->len));
}

/* The NIC and the CPU see what is in it, and the NIC can write it */
static void half_end(struct __test_metadata *_metadata, P2P_SELF *self,
		     struct p2p_buf *buf)
{
	p2p_buf_nic_read(_metadata, self, buf, AFTER);
	p2p_buf_nic_write(_metadata, self, buf, OTHER);
	p2p_buf_cpu_read(_metadata, buf, OTHER);
	p2p_buf_free(_metadata, self, buf);
}

FIXTURE(p2p_swap)
{
	P2P_SELF p2p;
	bool swaps;	/* to memory of its own, which is compressed */
};

#define ZRAM	"/dev/zram0"

static bool make_swap(void)
{
	static const char magic[] = "SWAPSPACE2";
	union {
		char bytes[P2P_PAGE];
		struct {
			char boot[1024];
			__u32 version, last_page, bad_pages;
		};
	} header = { .version = 1, .last_page = 4095 };
	int fd;

	if (p2p_write("/sys/block/zram0/disksize", "16M"))
		return false;
	fd = open(ZRAM, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	memcpy(header.bytes + P2P_PAGE - strlen(magic), magic, strlen(magic));
	if (write(fd, &header, sizeof(header)) != sizeof(header) || fsync(fd)) {
		close(fd);
		return false;
	}
	close(fd);
	return !swapon(ZRAM, 0);
}

FIXTURE_SETUP(p2p_swap)
{
	p2p_setup(_metadata, &self->p2p, NULL);
}

FIXTURE_TEARDOWN_PARENT(p2p_swap)
{
	if (self->swaps) {
		EXPECT_EQ(0, swapoff(ZRAM));
		EXPECT_EQ(0, p2p_write("/sys/block/zram0/reset", "1"));
	}
	p2p_teardown(_metadata, &self->p2p, NULL);
}

TEST_F_TIMEOUT(p2p_swap, pages, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;

	P2P_DISRUPTIVE(return);
	if (p2p_number_in("/proc/meminfo", "SwapTotal:") <= 0) {
		if (!make_swap())
			SKIP(return, "no swap, and no zram");
		self->swaps = true;
	}
	half_init(_metadata, p2p, &buf);
	/* A mapping of the NIC is no reason to keep a page */
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_PAGEOUT));
	EXPECT_LT(0, p2p_number_in("/proc/self/status", "VmSwap:"));
	EXPECT_EQ(p2p_peer_path(p2p->path) ? PAGES / 2 : 0,
		  p2p_gpu_resident(&p2p->gpu, buf.p, buf.len));
	half_end(_metadata, p2p, &buf);

	/* From swap to VRAM, and from VRAM to swap */
	half_init(_metadata, p2p, &buf);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_PAGEOUT));
	ASSERT_LE(0, p2p_gpu_to_vram(&p2p->gpu, buf.p, buf.len));
	ASSERT_LE(0, p2p_gpu_to_host(&p2p->gpu, buf.p, buf.len));
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_PAGEOUT));
	half_end(_metadata, p2p, &buf);
}

/* Only this process and its children see what is mounted there */
#define CGROUPS	"/tmp"
#define CGROUP	CGROUPS "/p2p-test"

/* A group with at most @max; false if there are none */
static bool limit(const char *max)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("cgroup2", CGROUPS, "cgroup2", 0, NULL))
		return false;
	if (p2p_write(CGROUPS "/cgroup.subtree_control", "+memory"))
		return false;
	/* Left behind by one that was killed */
	rmdir(CGROUP);
	if (mkdir(CGROUP, 0700))
		return false;
	p2p_write(CGROUP "/memory.swap.max", "0");
	return !p2p_write(CGROUP "/memory.max", max);
}

/*
 * As much memory as the limit allows goes to VRAM, where it counts as well, and home;
 * more than that ends the process, whatever is in VRAM.
 */
static void limited(struct __test_metadata *_metadata, P2P_SELF *self,
		    size_t len, int fd)
{
	P2P_SELF own = *self;
	struct p2p_buf buf;
	size_t pos;

	ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
	p2p_buf_init(_metadata, &own, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, &own, &buf);
	p2p_buf_nic_write(_metadata, &own, &buf, AFTER);
	ASSERT_EQ(1, write(fd, "", 1));
	for (pos = 0; pos < len; pos += P2P_HUGE) {
		unsigned char *p = p2p_alloc(P2P_HUGE);

		ASSERT_NE(NULL, p);
		p2p_fill(p, OTHER, pos, P2P_HUGE);
		if (pos / P2P_HUGE % 2)
			ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, p, P2P_HUGE));
		p2p_expect_pattern(_metadata, "more", p, OTHER, pos, P2P_HUGE);
	}
	p2p_buf_nic_read(_metadata, &own, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	_exit(0);
}

TEST_F_TIMEOUT(p2p, limit, TIMEOUT_S)
{
	static const size_t lens[] = { 8UL << 20, 128UL << 20 };
	int to_parent[2], status;
	size_t i;
	pid_t pid;

	P2P_DISRUPTIVE(return);
	if (!limit("24M"))
		SKIP(return, "no memory controller");
	for (i = 0; i < ARRAY_SIZE(lens); i++) {
		ASSERT_EQ(0, pipe(to_parent));
		pid = p2p_fork_child(_metadata);
		if (!pid) {
			ASSERT_EQ(0, p2p_write(CGROUP "/cgroup.procs", "0"));
			limited(_metadata, self, lens[i], to_parent[1]);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		p2p_hear(_metadata, to_parent);
		EXPECT_EQ(i ? SIGKILL : 0, status);
		EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	}
	EXPECT_LT(0, p2p_number_in(CGROUP "/memory.events", "oom_kill "));
	EXPECT_EQ(0, rmdir(CGROUP));
}

#define KSM	"/sys/kernel/mm/ksm/"

static void ksm(struct __test_metadata *_metadata, const char *run)
{
	ASSERT_EQ(0, p2p_change(KSM "sleep_millisecs", "1"));
	ASSERT_EQ(0, p2p_change(KSM "pages_to_scan", "1000"));
	ASSERT_EQ(0, p2p_change(KSM "run", run));
}

/* Equal pages become one, which the NIC may read. A write makes it two. */
TEST_F_TIMEOUT(p2p, merge, TIMEOUT_S)
{
	struct p2p_buf buf;
	size_t pos;
	int i;

	P2P_DISRUPTIVE(return);
	if (access(KSM "run", W_OK))
		SKIP(return, "no KSM");
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	for (pos = 0; pos < LEN; pos += P2P_PAGE)
		p2p_fill(buf.p + pos, BEFORE, 0, P2P_PAGE);
	ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu, buf.p, P2P_PAGE));
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_MERGEABLE));
	ksm(_metadata, "1");
	for (i = 0; p2p_number_in(KSM_STAT, "ksm_merging_pages ") < PAGES - 1; i++) {
		ASSERT_GT(1000, i)
			TH_LOG("%ld merged",
			       p2p_number_in(KSM_STAT, "ksm_merging_pages "));
		p2p_sleep_ms(10);
	}
	ksm(_metadata, "0");
	EXPECT_EQ(1, p2p_gpu_resident(&self->gpu, buf.p, buf.len));

	/* It goes to VRAM as well, where each is a page of its own again */
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf.p, 3 * P2P_PAGE));
	for (pos = 0; pos < LEN; pos += P2P_PAGE) {
		unsigned char data[P2P_PAGE];

		ASSERT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p + pos, data,
					  P2P_PAGE, NULL));
		p2p_expect_pattern(_metadata, "NIC read", data, BEFORE, 0, P2P_PAGE);
		if (pos / P2P_PAGE % 2 == 0)
			continue;
		p2p_fill(data, AFTER, 0, P2P_PAGE);
		ASSERT_EQ(0, p2p_nic_write(&self->nic, buf.handle, buf.p + pos,
					   data, P2P_PAGE, NULL));
	}
	for (pos = 0; pos < LEN; pos += P2P_PAGE)
		p2p_expect_pattern(_metadata, "CPU", buf.p + pos,
				   pos / P2P_PAGE % 2 ? AFTER : BEFORE, 0,
				   P2P_PAGE);
	p2p_buf_free(_metadata, self, &buf);
}

/* A huge page is made of pages, some of which are in VRAM, or it is not */
TEST_F_TIMEOUT(p2p, collapse, TIMEOUT_S)
{
	struct p2p_buf buf;
	unsigned int vram;

	for (vram = 0; vram < 2; vram++) {
		buf = (struct p2p_buf){ .len = P2P_HUGE,
					.pages = P2P_HUGE / P2P_PAGE };
		buf.p = p2p_alloc_huge(buf.len);
		ASSERT_NE(NULL, buf.p);
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_NOHUGEPAGE));
		p2p_fill(buf.p, BEFORE, 0, buf.len);
		ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
					 P2PTEST_NIC_MR_WRITE, &buf.handle));
		if (vram)
			ASSERT_EQ(3, p2p_gpu_to_vram(&self->gpu, buf.p +
						     100 * P2P_PAGE, 3 * P2P_PAGE));
		ASSERT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p +
					  101 * P2P_PAGE, &(char){ 0 }, 1, NULL));
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_HUGEPAGE));
		if (madvise(buf.p, buf.len, MADV_COLLAPSE))
			EXPECT_TRUE(vram && (errno == EINVAL || errno == EAGAIN ||
					     errno == EBUSY)) {
				TH_LOG("%s", strerror(errno));
			}
		p2p_buf_cpu_read(_metadata, &buf, BEFORE);
		p2p_buf_free(_metadata, self, &buf);
	}
}

TEST_F_TIMEOUT(p2p, compact, TIMEOUT_S)
{
	struct p2p_buf buf;

	half_init(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_write("/proc/sys/vm/compact_memory", "1"));
	half_end(_metadata, self, &buf);
}

#define NODE1	"/sys/devices/system/node/node1"

/*
 * The node of the last page, which is in host memory; before that, move all pages to
 * @to, unless that is NULL
 */
static int node_moved(struct __test_metadata *_metadata, struct p2p_buf *buf,
		      const int *to)
{
	int status[PAGES];
	void *pages[PAGES];
	unsigned int i;

	for (i = 0; i < PAGES; i++)
		pages[i] = buf->p + i * P2P_PAGE;
	ASSERT_LE(0, syscall(SYS_move_pages, 0, PAGES, pages, to, status,
			     MPOL_MF_MOVE));
	return status[PAGES - 1];
}

static int to_node(struct __test_metadata *_metadata, struct p2p_buf *buf, int node)
{
	int nodes[PAGES];
	unsigned int i;

	for (i = 0; i < PAGES; i++)
		nodes[i] = node;
	return node_moved(_metadata, buf, nodes);
}

static int node_of(struct __test_metadata *_metadata, struct p2p_buf *buf)
{
	return node_moved(_metadata, buf, NULL);
}

/* Pages in host memory move to another node. VRAM is in no node that they could leave. */
TEST_F_TIMEOUT(p2p, other_node, TIMEOUT_S)
{
	struct p2p_buf buf;
	long vram;
	int node;

	if (access(NODE1, F_OK))
		SKIP(return, "one NUMA node");
	half_init(_metadata, self, &buf);
	vram = p2p_gpu_resident(&self->gpu, buf.p, buf.len);
	for (node = 1; node >= 0; node--) {
		EXPECT_EQ(node, to_node(_metadata, &buf, node));
		p2p_buf_nic_read(_metadata, self, &buf, AFTER);
		EXPECT_EQ(vram, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	}
	half_end(_metadata, self, &buf);
}

#define BLOCKS	"/sys/devices/system/memory/"

/* The folder of the block of memory that has this page */
static void block_of(struct __test_metadata *_metadata, const void *p,
		     char folder[PATH_MAX])
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	__u64 entry, size = 0;
	FILE *f;

	ASSERT_LE(0, fd);
	ASSERT_EQ((ssize_t)sizeof(entry),
		  pread(fd, &entry, sizeof(entry),
			(uintptr_t)p / P2P_PAGE * sizeof(entry)));
	close(fd);
	f = fopen(BLOCKS "block_size_bytes", "re");
	ASSERT_NE(NULL, f);
	ASSERT_EQ(1, fscanf(f, "%llx", &size));
	fclose(f);
	/* Documentation/admin-guide/mm/pagemap.rst: the PFN, bits 0 to 54 */
	snprintf(folder, PATH_MAX, BLOCKS "memory%llu/",
		 (entry & ((1ULL << 55) - 1)) * P2P_PAGE / size);
}

/* Memory goes out of the machine: what it holds moves, and the NIC follows */
TEST_F_TIMEOUT(p2p, memory_offline, TIMEOUT_S)
{
	char before[PATH_MAX], after[PATH_MAX], path[PATH_MAX + 16], zone[16] = "";
	struct p2p_buf buf;
	long vram;
	FILE *f;

	P2P_DISRUPTIVE(return);
	half_init(_metadata, self, &buf);
	vram = p2p_gpu_resident(&self->gpu, buf.p, buf.len);
	block_of(_metadata, buf.p + LEN - P2P_PAGE, before);
	snprintf(path, sizeof(path), "%svalid_zones", before);
	f = fopen(path, "re");
	if (!f || fscanf(f, "%15s", zone) != 1 || strcmp(zone, "Movable"))
		SKIP(return, "no movable memory: boot with movablecore=");
	fclose(f);
	snprintf(path, sizeof(path), "%sstate", before);
	ASSERT_EQ(0, p2p_put_back_by(path, "online_movable"));
	ASSERT_EQ(0, p2p_write(path, "offline"));
	block_of(_metadata, buf.p + LEN - P2P_PAGE, after);
	EXPECT_NE(0, strcmp(before, after));
	EXPECT_EQ(vram, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	EXPECT_EQ(0, p2p_write(path, "online_movable"));
	half_end(_metadata, self, &buf);
}

#define BALANCING	"/proc/sys/kernel/numa_balancing"
#define BALANCING_MS	60000

/*
 * The kernel takes access to pages away, so that a page fault shows which node uses
 * them, and moves them there. The NIC gets them in each of these states. What is in
 * VRAM stays there, and the NIC can write it.
 */
TEST_F_TIMEOUT(p2p, numa_balancing, TIMEOUT_S)
{
	const bool peer = p2p_peer_path(self->path);
	unsigned char page[P2P_PAGE];
	struct p2p_buf buf, huge;
	unsigned int i;
	__u64 start;

	if (access(NODE1, F_OK))
		SKIP(return, "one NUMA node");
	P2P_DISRUPTIVE(return);
	if (!p2p_buf_init_huge(_metadata, self, &huge, BEFORE))
		return;
	if (p2p_change(BALANCING, "1"))
		SKIP(return, "no NUMA balancing");
	half_init(_metadata, self, &buf);
	ASSERT_EQ(1, to_node(_metadata, &buf, 1));
	p2p_buf_to_vram(_metadata, self, &huge);
	p2p_fill(page, BEFORE, 0, P2P_PAGE);
	EXPECT_EQ(0, p2p_nic_write(&self->nic, huge.handle, huge.p, page,
				   P2P_PAGE, NULL));
	start = p2p_now_ms();
	for (i = 0; node_of(_metadata, &buf) == 1; i++) {
		if (p2p_now_ms() - start > BALANCING_MS)
			break;
		/* Not the half in VRAM, which would come home */
		p2p_expect_pattern(_metadata, "CPU", buf.p + LEN / 2, AFTER, LEN / 2,
				   LEN / 2);
		if (i % 64 == 0)
			p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	}
	EXPECT_EQ(0, node_of(_metadata, &buf));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	EXPECT_EQ(0, p2p_nic_write(&self->nic, huge.handle, huge.p, page,
				   P2P_PAGE, NULL));
	EXPECT_EQ(peer ? PAGES / 2 : 0,
		  p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(peer ? (long)huge.pages : 0,
		  p2p_gpu_resident(&self->gpu, huge.p, huge.len));
	EXPECT_EQ(0, p2p_change(BALANCING, "0"));
	half_end(_metadata, self, &buf);
	p2p_buf_cpu_read(_metadata, &huge, BEFORE);
	p2p_buf_free(_metadata, self, &huge);
}

/* mlock() brings pages to memory of the CPU */
TEST_F_TIMEOUT(p2p, lock, TIMEOUT_S)
{
	struct p2p_buf buf;

	half_init(_metadata, self, &buf);
	ASSERT_EQ(0, mlock(buf.p, buf.len));
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, munlock(buf.p, buf.len));
	half_end(_metadata, self, &buf);
}

static int uffd_open(struct __test_metadata *_metadata, struct p2p_buf *buf)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { .start = (uintptr_t)buf->p, .len = buf->len },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		return -errno;
	ASSERT_EQ(0, ioctl(fd, UFFDIO_API, &api));
	ASSERT_EQ(0, ioctl(fd, UFFDIO_REGISTER, &reg));
	return fd;
}

struct pager {
	int fd;
	struct p2p_buf *buf;
};

/* What went wrong, or NULL */
static char *provide(const struct pager *pager, const struct uffd_msg *msg)
{
	unsigned char page[P2P_PAGE];
	struct uffdio_copy copy = {
		.src = (uintptr_t)page,
		.dst = msg->arg.pagefault.address & ~(P2P_PAGE - 1),
		.len = P2P_PAGE,
	};

	p2p_fill(page, BEFORE, copy.dst - (uintptr_t)pager->buf->p, P2P_PAGE);
	return ioctl(pager->fd, UFFDIO_COPY, &copy) ? "no page" : NULL;
}

/* Pages that were missing come from here */
static void *answer(void *arg)
{
	const struct pager *pager = arg;
	struct uffd_msg msg;
	unsigned int i;
	char *what;

	for (i = 0; i < PAGES / 2; i++) {
		if (read(pager->fd, &msg, sizeof(msg)) != sizeof(msg))
			return "no message";
		what = provide(pager, &msg);
		if (what)
			return what;
	}
	return NULL;
}

/* Another thread provides what the NIC misses. Pages in VRAM are not missing. */
TEST_F_TIMEOUT(p2p, userfault, TIMEOUT_S)
{
	struct p2p_buf buf;
	struct pager pager = { .buf = &buf };
	pthread_t thread;
	void *what;

	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	ASSERT_EQ((long)PAGES / 2, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len / 2));
	ASSERT_EQ(0, madvise(buf.p + buf.len / 2, buf.len / 2, MADV_DONTNEED));
	pager.fd = uffd_open(_metadata, &buf);
	if (pager.fd < 0 && access(UFFD_SYSCTL, F_OK))
		SKIP(return, "no userfaultfd");
	ASSERT_LE(0, pager.fd);
	ASSERT_EQ(0, pthread_create(&thread, NULL, answer, &pager));
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	ASSERT_EQ(0, pthread_join(thread, &what));
	EXPECT_EQ(NULL, what);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	close(pager.fd);
	half_end(_metadata, self, &buf);
}

/* A registration finds so many pages at a time */
#define BATCH	512U

struct pinner {
	P2P_SELF *self;
	struct p2p_buf *buf;
};

static void *pin(void *arg)
{
	struct pinner *p = arg;
	int ret = p2p_nic_pin(&p->self->nic, p->buf->p, p->buf->len,
			      P2PTEST_NIC_MR_WRITE, &p->buf->handle);

	return (void *)(long)ret;
}

/*
 * While a registration waits for its last page, one that was mapped already is
 * given back. The card gets all of them.
 */
TEST_F_TIMEOUT(p2p, userfault_revoked, TIMEOUT_S)
{
	struct p2ptest_nic_pinned pinned;
	struct p2p_buf buf, last;
	struct pinner pinner = { .self = self, .buf = &buf };
	struct pager pager = { .buf = &buf };
	struct p2p_view view;
	struct uffd_msg msg;
	pthread_t thread;
	void *ret;

	p2p_buf_alloc(_metadata, &buf, BATCH + 1, BEFORE);
	last = (struct p2p_buf){ .p = buf.p + BATCH * P2P_PAGE, .len = P2P_PAGE };
	ASSERT_EQ(0, madvise(last.p, last.len, MADV_DONTNEED));
	pager.fd = uffd_open(_metadata, &last);
	if (pager.fd < 0 && access(UFFD_SYSCTL, F_OK))
		SKIP(return, "no userfaultfd");
	ASSERT_LE(0, pager.fd);
	ASSERT_EQ(0, pthread_create(&thread, NULL, pin, &pinner));
	ASSERT_EQ((ssize_t)sizeof(msg), read(pager.fd, &msg, sizeof(msg)));
	ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu, buf.p, P2P_PAGE));
	EXPECT_EQ(NULL, provide(&pager, &msg));
	ASSERT_EQ(0, pthread_join(thread, &ret));
	ASSERT_EQ(0, (long)ret);

	ASSERT_EQ(0, p2p_nic_pinned(&self->nic, buf.handle, &pinned, &view));
	EXPECT_EQ(1U, pinned.revoked);
	EXPECT_EQ(buf.pages + 1, pinned.mapped);
	EXPECT_EQ(0U, view.kind[P2PTEST_PAGE_UNMAPPED]);
	EXPECT_EQ(0, p2p_nic_unpin(&self->nic, buf.handle));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	close(pager.fd);
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

/* A process whose NIC waits for a page. It writes to @waits as soon as it does. */
static void unanswered(struct __test_metadata *_metadata, P2P_SELF *self,
		       const int *waits)
{
	struct p2p_buf buf;
	struct pollfd poll_fd = { .events = POLLIN };
	pid_t pid;
	char c = 0;

	ASSERT_EQ(0, p2p_nic_open(&self->nic, 0));
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len / 2));
	ASSERT_EQ(0, madvise(buf.p + buf.len / 2, buf.len / 2, MADV_DONTNEED));
	poll_fd.fd = uffd_open(_metadata, &buf);
	if (poll_fd.fd < 0 && access(UFFD_SYSCTL, F_OK))
		_exit(KSFT_SKIP);
	ASSERT_LE(0, poll_fd.fd);
	/* The child shares the userfaultfd, so it can tell when the fault waits */
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		if (poll(&poll_fd, 1, -1) == 1 && write(waits[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	p2p_nic_write(&self->nic, buf.handle, buf.p + buf.len / 2, &c, 1, NULL);
	_exit(1);
}

/*
 * Nobody provides what the NIC misses. The process that waits for it can be killed,
 * also if the NIC is being unbound, which waits for the process. Until then the NIC
 * keeps its IOMMU domain.
 */
TEST_F_TIMEOUT(p2p, userfault_unanswered, TIMEOUT_S)
{
	char name[P2P_PCI_NAME], type[96], c;
	int waits[2], status;
	pid_t pid, unbind;

	ASSERT_EQ(0, pipe(waits));
	p2p_nic_close(&self->nic);
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, name));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		P2P_SELF own = *self;

		unanswered(_metadata, &own, waits);
	}
	close(waits[1]);
	if (read(waits[0], &c, 1) != 1) {
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		ASSERT_EQ(KSFT_SKIP, WEXITSTATUS(status));
		SKIP(return, "no userfaultfd");
	}
	unbind = p2p_fork_child(_metadata);
	if (!unbind)
		_exit(p2p_pci_unbind(P2P_NIC_DRIVER, name) != 0);
	p2p_sleep_ms(100);
	if (p2p_pci_translated(name)) {
		snprintf(type, sizeof(type),
			 "/sys/bus/pci/devices/%s/iommu_group/type", name);
		EXPECT_EQ(-EPERM, p2p_write(type, "identity"));
	}
	p2p_kill_child(_metadata, pid);
	p2p_wait_child(_metadata, unbind);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, name, 0));
}

/* Another process reads and writes it, by each of the ways that there are */
TEST_F_TIMEOUT(p2p, other_process, TIMEOUT_S)
{
	struct p2p_buf buf, *theirs;
	unsigned char *data = malloc(LEN);
	struct iovec local = { data, LEN }, remote = { NULL, LEN };
	int to_parent[2], to_child[2], fd;
	char path[32], c;
	ssize_t n;
	pid_t pid;

	ASSERT_NE(NULL, data);
	theirs = mmap(NULL, sizeof(*theirs), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)theirs);
	ASSERT_EQ(0, pipe(to_parent));
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		P2P_SELF own = *self;

		ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
		half_init(_metadata, &own, &buf);
		*theirs = buf;
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		p2p_buf_nic_read(_metadata, &own, &buf, OTHER);
		p2p_buf_cpu_read(_metadata, &buf, OTHER);
		/* Not those that wait for a place in a list of the LRU, which holds them */
		ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, buf.p, buf.len));
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		half_end(_metadata, &own, &buf);
		_exit(0);
	}
	p2p_hear(_metadata, to_parent);
	remote.iov_base = theirs->p;
	n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
	if (n < 0)
		ASSERT_STREQ("Function not implemented", strerror(errno));
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, fd);
	/* Without CONFIG_CROSS_MEMORY_ATTACH */
	if (n < 0)
		ASSERT_EQ((ssize_t)LEN, pread(fd, data, LEN, (uintptr_t)theirs->p));
	p2p_expect_pattern(_metadata, "read", data, AFTER, 0, LEN);
	p2p_fill(data, OTHER, 0, LEN);
	ASSERT_EQ((ssize_t)LEN, pwrite(fd, data, LEN, (uintptr_t)theirs->p));
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_hear(_metadata, to_parent);
	memset(data, 0, LEN);
	ASSERT_EQ((ssize_t)LEN, pread(fd, data, LEN, (uintptr_t)theirs->p));
	p2p_expect_pattern(_metadata, "/proc/pid/mem", data, OTHER, 0, LEN);
	p2p_fill(data, AFTER, 0, LEN);
	ASSERT_EQ((ssize_t)LEN, pwrite(fd, data, LEN, (uintptr_t)theirs->p));
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
	close(fd);
}

/* Words that a tracer changes: in a page that is in VRAM, and in one that is not */
static const size_t pokes[] = { P2P_PAGE + 8, LEN - P2P_PAGE + 16 };
static const long poke = 0x706f6b6564L;

/* Everybody sees the new words, and what was there before around them */
static void poked(struct __test_metadata *_metadata, P2P_SELF *self,
		  struct p2p_buf *buf)
{
	unsigned char *want = malloc(LEN), *seen = malloc(LEN);
	size_t i;

	ASSERT_NE(NULL, want);
	ASSERT_NE(NULL, seen);
	p2p_fill(want, AFTER, 0, LEN);
	for (i = 0; i < ARRAY_SIZE(pokes); i++)
		memcpy(want + pokes[i], &poke, sizeof(poke));
	ASSERT_EQ(0, p2p_nic_read(&self->nic, buf->handle, buf->p, seen, LEN,
				  NULL));
	EXPECT_EQ(0, memcmp(want, seen, LEN))
		TH_LOG("the NIC sees something else");
	ASSERT_LE(0, p2p_gpu_read(&self->gpu, buf->p, seen, LEN));
	EXPECT_EQ(0, memcmp(want, seen, LEN))
		TH_LOG("the GPU sees something else");
	EXPECT_EQ(0, memcmp(want, buf->p, LEN))
		TH_LOG("the CPU sees something else");
	free(want);
	free(seen);
}

/* A tracer writes to pages of a process that is stopped, and brings them home */
TEST_F_TIMEOUT(p2p, tracer, TIMEOUT_S)
{
	int to_parent[2], to_child[2], status;
	struct p2p_buf buf, *theirs;
	unsigned char *at;
	size_t i;
	pid_t pid;
	char c;

	theirs = mmap(NULL, sizeof(*theirs), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)theirs);
	ASSERT_EQ(0, pipe(to_parent));
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		P2P_SELF own = *self;

		ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
		half_init(_metadata, &own, &buf);
		/* Where the NIC did not leave it */
		ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, buf.p, buf.len / 2));
		if (p2p_peer_path(own.path))
			EXPECT_EQ(1, p2p_gpu_resident(&own.gpu, buf.p + P2P_PAGE,
						      P2P_PAGE));
		*theirs = buf;
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		EXPECT_EQ(0, p2p_gpu_resident(&own.gpu, buf.p + P2P_PAGE, P2P_PAGE));
		poked(_metadata, &own, &buf);
		/* As well when these pages have been in VRAM again */
		ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, buf.p, buf.len));
		poked(_metadata, &own, &buf);
		p2p_buf_nic_write(_metadata, &own, &buf, AFTER);
		half_end(_metadata, &own, &buf);
		_exit(0);
	}
	p2p_hear(_metadata, to_parent);
	ASSERT_EQ(0, ptrace(PTRACE_SEIZE, pid, NULL, NULL));
	ASSERT_EQ(0, ptrace(PTRACE_INTERRUPT, pid, NULL, NULL));
	ASSERT_EQ(pid, waitpid(pid, &status, __WALL));
	ASSERT_TRUE(WIFSTOPPED(status));
	for (i = 0; i < ARRAY_SIZE(pokes); i++) {
		/* To read first would bring it home first */
		at = theirs->p + pokes[i];
		ASSERT_EQ(0, ptrace(PTRACE_POKEDATA, pid, at, poke));
		EXPECT_EQ(poke, ptrace(PTRACE_PEEKDATA, pid, at, NULL));
	}
	ASSERT_EQ(0, ptrace(PTRACE_DETACH, pid, NULL, NULL));
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
}

#define CPU1	"/sys/devices/system/cpu/cpu1/online"
#define CPU_ROUNDS	4U

/* A thread that runs beside the NIC until @stop is set */
struct beside {
	pthread_t thread;
	P2P_SELF *self;
	struct p2p_buf *buf;
	bool stop;
	unsigned int done;
	long ret;
};

static bool goes_on(struct beside *b)
{
	return b->ret >= 0 && !__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE);
}

/* The CPU goes, with all that it had to do, and comes back */
static void *cpu_run(void *arg)
{
	struct beside *b = arg;

	while (goes_on(b)) {
		b->ret = p2p_write(CPU1, "0");
		p2p_sleep_ms(100);
		/* Whatever has happened */
		if (p2p_write(CPU1, "1"))
			b->ret = -EIO;
		p2p_sleep_ms(100);
		/* Something else may forbid it for a moment */
		if (b->ret == -EBUSY)
			b->ret = 0;
		else
			b->done++;
	}
	return NULL;
}

/* Pages move to VRAM, and some of them home */
static void *move_run(void *arg)
{
	struct beside *b = arg;

	while (goes_on(b)) {
		b->ret = p2p_gpu_to_vram(&b->self->gpu, b->buf->p, LEN);
		if (b->ret > 0)
			b->done += b->ret;
		p2p_sleep_ms(130);
		if (b->ret >= 0)
			b->ret = p2p_gpu_to_host(&b->self->gpu, b->buf->p, LEN / 2);
		p2p_sleep_ms(170);
	}
	return NULL;
}

/* A CPU goes offline and comes back, while pages move and the NIC transfers */
TEST_F_TIMEOUT(p2p, cpu_offline, TIMEOUT_S)
{
	struct beside cpu = { }, move = { .self = self };
	struct p2p_buf buf;
	unsigned int i;

	P2P_DISRUPTIVE(return);
	if (access(CPU1, W_OK))
		SKIP(return, "no CPU that can go offline: no " CPU1);
	ASSERT_EQ(0, p2p_put_back_by(CPU1, "1"));
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	move.buf = &buf;
	ASSERT_EQ(0, pthread_create(&move.thread, NULL, move_run, &move));
	ASSERT_EQ(0, pthread_create(&cpu.thread, NULL, cpu_run, &cpu));
	for (i = 0; i < CPU_ROUNDS; i++) {
		p2p_buf_nic_write(_metadata, self, &buf, AFTER + i);
		p2p_buf_nic_read(_metadata, self, &buf, AFTER + i);
		if (i & 1)
			p2p_buf_cpu_read(_metadata, &buf, AFTER + i);
	}
	__atomic_store_n(&cpu.stop, true, __ATOMIC_RELEASE);
	__atomic_store_n(&move.stop, true, __ATOMIC_RELEASE);
	ASSERT_EQ(0, pthread_join(cpu.thread, NULL));
	ASSERT_EQ(0, pthread_join(move.thread, NULL));
	EXPECT_EQ(0, cpu.ret)
		TH_LOG("CPU 1: %s", strerror(-cpu.ret));
	EXPECT_LE(0, move.ret)
		TH_LOG("moves: %s", strerror(-move.ret));
	EXPECT_LT(0U, cpu.done);
	EXPECT_LT(0U, move.done);
	EXPECT_EQ(1, p2p_number_in(CPU1, ""))
		TH_LOG("CPU 1 has not come back");
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	half_end(_metadata, self, &buf);
}

/* Pages that are given to a pipe are pages of host memory */
TEST_F_TIMEOUT(p2p, vmsplice, TIMEOUT_S)
{
	unsigned char *data = malloc(LEN);
	struct p2p_buf buf;
	struct iovec iov;
	int fd[2];

	ASSERT_NE(NULL, data);
	half_init(_metadata, self, &buf);
	iov = (struct iovec){ buf.p, buf.len };
	ASSERT_EQ(0, pipe(fd));
	ASSERT_EQ((ssize_t)LEN, vmsplice(fd[1], &iov, 1, 0));
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	/* They are pinned, and do not go */
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	ASSERT_EQ((ssize_t)LEN, read(fd[0], data, LEN));
	p2p_expect_pattern(_metadata, "pipe", data, AFTER, 0, LEN);
	half_end(_metadata, self, &buf);
}

#define CORE	"/tmp/p2p-core."

/* The core dump of a process has what it had in VRAM */
TEST_F_TIMEOUT(p2p, core_dump, TIMEOUT_S)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	unsigned char *core, first[64];
	char path[sizeof(CORE) + 16];
	struct p2p_buf buf;
	int fd, status;
	struct stat st;
	pid_t pid;
	off_t pos;

	P2P_DISRUPTIVE(return);
	if (p2p_change("/proc/sys/kernel/core_pattern", CORE "%p"))
		SKIP(return, "no core dumps");
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		P2P_SELF own = *self;

		ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
		setrlimit(RLIMIT_CORE, &unlimited);
		prctl(PR_SET_DUMPABLE, 1);
		half_init(_metadata, &own, &buf);
		signal(SIGABRT, SIG_DFL);
		abort();
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_TRUE(WIFSIGNALED(status) && WCOREDUMP(status));
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	snprintf(path, sizeof(path), CORE "%d", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	unlink(path);
	ASSERT_EQ(0, fstat(fd, &st));
	core = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, (void *)core);
	p2p_fill(first, AFTER, 0, sizeof(first));
	for (pos = 0; st.st_size - pos >= (off_t)LEN; pos += P2P_PAGE)
		if (!memcmp(core + pos, first, sizeof(first)) &&
		    p2p_compare(core + pos, AFTER, 0, LEN) == LEN)
			break;
	EXPECT_LE((off_t)LEN, st.st_size - pos)
		TH_LOG("the pages are not in the core dump");
	munmap(core, st.st_size);
	close(fd);
}

/* A file of a device that comes by a socket: regions do not come with it */
TEST_F_TIMEOUT(p2p, passed_file, TIMEOUT_S)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .head = {
		.cmsg_len = CMSG_LEN(sizeof(int)),
		.cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS,
	} };
	struct { struct p2p_buf buf; } what = { };
	struct iovec iov = { &what, sizeof(what) };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct p2p_buf buf;
	int pair[2];
	pid_t pid;
	char c;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		P2P_SELF own = *self;

		/* Not the file that fork() gave us */
		p2p_nic_close(&own.nic);
		ASSERT_EQ((ssize_t)sizeof(what), recvmsg(pair[1], &msg, 0));
		memcpy(&own.nic.fd, CMSG_DATA(&control.head), sizeof(int));
		EXPECT_EQ(-EPERM, p2p_nic_read(&own.nic, what.buf.handle,
					       what.buf.p, &c, 1, NULL));
		EXPECT_EQ(-EPERM, p2p_nic_dereg(&own.nic, what.buf.handle));
		half_init(_metadata, &own, &buf);
		half_end(_metadata, &own, &buf);
		_exit(0);
	}
	half_init(_metadata, self, &what.buf);
	memcpy(CMSG_DATA(&control.head), &self->nic.fd, sizeof(int));
	ASSERT_EQ((ssize_t)sizeof(what), sendmsg(pair[0], &msg, 0));
	p2p_wait_child(_metadata, pid);
	half_end(_metadata, self, &what.buf);
}

/* A process that becomes another program leaves nothing behind */
TEST_F_TIMEOUT(p2p, exec, TIMEOUT_S)
{
	struct p2p_buf buf;
	pid_t pid = p2p_fork_child(_metadata);

	if (!pid) {
		half_init(_metadata, self, &buf);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	p2p_wait_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
}

TEST_HARNESS_MAIN
