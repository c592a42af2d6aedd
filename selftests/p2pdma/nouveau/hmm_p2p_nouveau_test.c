// SPDX-License-Identifier: GPL-2.0
/*
 * Test of nouveau's device private memory: pages that move to video memory, that
 * come home when the CPU touches them, and that a NIC reaches where they lie
 *
 * It needs a GPU of the generations Pascal to Volta, or a model of one. Tests of
 * the NIC need the driver of CONFIG_P2PTEST_NIC as well, and a device for it.
 * P2PTEST_EXPECT is as in ../hmm_p2p_test.c. The tests are alone on the machine:
 * there must be no swap, and nobody else who uses the GPU. They take the driver
 * away from the GPU, so they only run if P2PTEST_DISRUPTIVE is set.
 */
#include "nouveau_fixture.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

/* That the driver goes takes a fraction of a second */
#define UNBIND_S	60

/* At so many moments of a migration pages go away */
#define DROPS	100

/* More huge pages than nouveau sets memory aside for at a time */
#define ROUNDS	160

FIXTURE(nouveau)
{
	int fd;
};

FIXTURE_SETUP(nouveau)
{
	self->fd = nouveau_start(_metadata);
}

FIXTURE_TEARDOWN(nouveau)
{
	if (self->fd >= 0)
		close(self->fd);
}

#define SELF FIXTURE_DATA(nouveau)

#define SLAB_DIR	"/sys/kernel/debug/slab"

/*
 * How many objects there are that a function named @caller has allocated, with a
 * function named @via on the stack, if that is not NULL. 0 if the kernel does not
 * know: it does with slab_debug=U.
 */
static long allocated(const char *caller, const char *via)
{
	DIR *dir = opendir(SLAB_DIR);
	long count = 0, total = 0;
	char path[512], line[512];
	struct dirent *entry;
	FILE *f;

	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, "kmalloc", strlen("kmalloc")))
			continue;
		snprintf(path, sizeof(path), SLAB_DIR "/%s/alloc_traces",
			 entry->d_name);
		f = fopen(path, "re");
		while (f && fgets(line, sizeof(line), f)) {
			/* A count in 7 columns; its stack begins further right */
			if (isdigit((unsigned char)line[6]))
				count = strstr(line, caller) ? atol(line) : 0;
			if (count && (!via || strstr(line, via))) {
				total += count;
				count = 0;
			}
		}
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return total;
}

static void all_home(struct __test_metadata *_metadata, struct p2p_buf *buf,
		     __u64 seed)
{
	p2p_buf_cpu_read(_metadata, buf, seed);
	EXPECT_EQ(0, nouveau_resident(buf->p, buf->len));
}

static void there_and_back(struct __test_metadata *_metadata, SELF *self,
			   size_t pages, int rounds)
{
	struct p2p_buf buf;
	int i;

	p2p_buf_alloc(_metadata, &buf, pages, BEFORE);
	for (i = 0; i < rounds; i++) {
		to_vram(_metadata, self->fd, &buf);
		all_home(_metadata, &buf, BEFORE + i);
		p2p_fill(buf.p, BEFORE + i + 1, 0, buf.len);
	}
	buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(nouveau, there_and_back, TIMEOUT_S)
{
	there_and_back(_metadata, self, 16, 3);
}

/*
 * The push buffer (64 KiB) has room for 1260 copies. Pages that move at once are
 * pushed at once, so the buffer gets full, and is used from its beginning, in the
 * middle of that. No copy is lost, wherever the rounds before have left off.
 */
TEST_F_TIMEOUT(nouveau, full_push_buffer, TIMEOUT_S)
{
	there_and_back(_metadata, self, 128, 24);
}

/* Each page by itself, not in their order */
TEST_F_TIMEOUT(nouveau, page_by_page, TIMEOUT_S)
{
	struct p2p_buf buf;
	size_t i, page;

	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	for (i = 0; i < buf.pages; i++) {
		page = i * 5 % buf.pages;
		p2p_expect_pattern(_metadata, "CPU", buf.p + page * P2P_PAGE,
				   BEFORE, page * P2P_PAGE, P2P_PAGE);
		EXPECT_EQ((long)(buf.pages - i - 1),
			  nouveau_resident(buf.p, buf.len));
	}
	buf_free(_metadata, &buf);
}

/* Memory that nobody has written reads as zeros, wherever it is */
TEST_F_TIMEOUT(nouveau, untouched, TIMEOUT_S)
{
	struct p2p_buf buf = { .pages = 16, .len = 16 * P2P_PAGE };

	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	to_vram(_metadata, self->fd, &buf);
	EXPECT_EQ(buf.len, p2p_compare_byte(buf.p, 0, buf.len));
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(nouveau, huge, TIMEOUT_S)
{
	struct p2p_buf buf;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	to_vram(_metadata, self->fd, &buf);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

/* One page of a huge one goes away: the rest are pages of their own */
TEST_F_TIMEOUT(nouveau, huge_with_a_hole, TIMEOUT_S)
{
	const size_t hole = 100 * P2P_PAGE;
	struct p2p_buf buf;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	to_vram(_metadata, self->fd, &buf);
	ASSERT_EQ(0, munmap(buf.p + hole, P2P_PAGE));
	EXPECT_EQ((long)buf.pages - 1, nouveau_resident(buf.p, buf.len));
	/* The first page that comes home is not the first of the huge one. */
	p2p_expect_pattern(_metadata, "after", buf.p + hole + P2P_PAGE, BEFORE,
			   hole + P2P_PAGE, buf.len - hole - P2P_PAGE);
	p2p_expect_pattern(_metadata, "before", buf.p, BEFORE, 0, hole);
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	buf_free(_metadata, &buf);
}

/*
 * Whether the GPU's page tables lead to the pages of a buffer from @first on, in
 * video memory, writable, and with contents of @seed (0: zeros), or lead nowhere.
 * No program of the GPU's could look. So the judge is asked, who sees all of video
 * memory from outside of the machine, by the port in P2PTEST_JUDGE.
 */
static void ask_judge(struct __test_metadata *_metadata, int gpu,
		      struct p2p_buf *buf, size_t first, size_t pages,
		      bool mapped, __u64 seed)
{
	int fd = open(getenv("P2PTEST_JUDGE"), O_RDWR | O_CLOEXEC);
	const char *sep = "";
	char answer[512];
	size_t i, n = 0;
	FILE *f;

	ASSERT_EQ(0, nouveau_flush(gpu));
	ASSERT_LE(0, fd);
	f = fdopen(dup(fd), "w");
	ASSERT_NE(NULL, f);
	fputs("{\"op\":\"mapped\",\"gpu\":0,\"pages\":[", f);
	for (i = first; i < first + pages; i++) {
		fprintf(f, "%s{\"va\":%zu", sep,
			(size_t)(buf->p + i * P2P_PAGE));
		if (mapped && !seed)
			fputs(",\"zeros\":true", f);
		else if (mapped)
			fprintf(f, ",\"content\":{\"seed\":%llu,\"index\":%zu}",
				seed, i);
		fputs("}", f);
		sep = ",";
	}
	fputs("]}\n", f);
	ASSERT_EQ(0, fclose(f));
	while (n < sizeof(answer) - 1 && read(fd, &answer[n], 1) == 1 &&
	       answer[n] != '\n')
		n++;
	answer[n] = '\0';
	close(fd);
	EXPECT_STREQ("ok", answer);
}

#define expect_mapped(buf, first, pages, seed) \
	ask_judge(_metadata, self->fd, buf, first, pages, true, seed)
#define expect_unmapped(buf, first, pages) \
	ask_judge(_metadata, self->fd, buf, first, pages, false, 0)

/* Pages in video memory are mapped for the GPU as long as they are there */
TEST_F_TIMEOUT(nouveau, mapped, TIMEOUT_S)
{
	struct p2p_buf buf;

	if (!getenv("P2PTEST_JUDGE"))
		SKIP(return, "P2PTEST_JUDGE does not say who sees video memory");
	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	expect_unmapped(&buf, 0, 16);
	to_vram(_metadata, self->fd, &buf);
	expect_mapped(&buf, 0, 16, BEFORE);
	p2p_expect_pattern(_metadata, "CPU", buf.p + 5 * P2P_PAGE, BEFORE,
			   5 * P2P_PAGE, P2P_PAGE);
	expect_mapped(&buf, 0, 5, BEFORE);
	expect_unmapped(&buf, 5, 1);
	expect_mapped(&buf, 6, 10, BEFORE);
	ASSERT_EQ(0, munmap(buf.p + 12 * P2P_PAGE, 4 * P2P_PAGE));
	expect_mapped(&buf, 6, 6, BEFORE);
	expect_unmapped(&buf, 12, 4);
	p2p_expect_pattern(_metadata, "CPU", buf.p, BEFORE, 0, 12 * P2P_PAGE);
	expect_unmapped(&buf, 0, 16);
	buf_free(_metadata, &buf);
}

/* And what nobody has written to yet. The GPU may be the first */
TEST_F_TIMEOUT(nouveau, mapped_hole, TIMEOUT_S)
{
	struct p2p_buf buf = { .len = 16 * P2P_PAGE, .pages = 16 };

	if (!getenv("P2PTEST_JUDGE"))
		SKIP(return, "P2PTEST_JUDGE does not say who sees video memory");
	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf.p);
	ASSERT_EQ(0, buf.p[3 * P2P_PAGE]);	/* the zero page */
	to_vram(_metadata, self->fd, &buf);
	expect_mapped(&buf, 0, 16, 0);
	buf_free(_metadata, &buf);
}

/* Each page of a huge one by itself, so that one can go */
TEST_F_TIMEOUT(nouveau, mapped_huge, TIMEOUT_S)
{
	const size_t hole = 100;
	struct p2p_buf buf;

	if (!getenv("P2PTEST_JUDGE"))
		SKIP(return, "P2PTEST_JUDGE does not say who sees video memory");
	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	to_vram(_metadata, self->fd, &buf);
	expect_mapped(&buf, 0, 2, BEFORE);
	expect_mapped(&buf, hole - 1, 3, BEFORE);
	expect_mapped(&buf, buf.pages - 2, 2, BEFORE);
	/* For the others the GPU may have to ask again */
	ASSERT_EQ(0, munmap(buf.p + hole * P2P_PAGE, P2P_PAGE));
	expect_unmapped(&buf, hole, 1);
	buf_free(_metadata, &buf);
	expect_unmapped(&buf, 0, 2);
	expect_unmapped(&buf, buf.pages - 2, 2);
}

/* The GPU's page tables are those of the process that opened the file */
TEST_F_TIMEOUT(nouveau, mapped_by_child, TIMEOUT_S)
{
	struct p2p_buf buf;
	pid_t pid;

	if (!getenv("P2PTEST_JUDGE"))
		SKIP(return, "P2PTEST_JUDGE does not say who sees video memory");
	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		p2p_fill(buf.p, OTHER, 0, buf.len);
		to_vram(_metadata, self->fd, &buf);
		expect_unmapped(&buf, 0, 16);
		_exit(p2p_compare(buf.p, OTHER, 0, buf.len) != buf.len);
	}
	p2p_wait_child(_metadata, pid);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

/* And not longer than the process lives, even if somebody else has the file */
TEST_F_TIMEOUT(nouveau, mapped_until_exit, TIMEOUT_S)
{
	struct p2p_buf buf;
	pid_t pid;
	int fd;

	if (!getenv("P2PTEST_JUDGE"))
		SKIP(return, "P2PTEST_JUDGE does not say who sees video memory");
	fd = nouveau_open_again(self->fd);
	ASSERT_LE(0, fd);
	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		ASSERT_EQ(0, nouveau_svm_init(fd));
		p2p_fill(buf.p, OTHER, 0, buf.len);
		to_vram(_metadata, fd, &buf);
		expect_mapped(&buf, 0, 16, OTHER);
		_exit(0);
	}
	p2p_wait_child(_metadata, pid);
	expect_unmapped(&buf, 0, 16);
	EXPECT_EQ(0, close(fd));
	buf_free(_metadata, &buf);
}

/* A thread that gives pages back, once, after a while */
struct dropper {
	pthread_t thread;
	struct p2p_buf buf;
	unsigned long delay_us;
};

static void *dropper_run(void *arg)
{
	struct dropper *d = arg;

	usleep(d->delay_us);
	return madvise(d->buf.p, d->buf.len, MADV_DONTNEED) ? d : NULL;
}

static unsigned long now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000UL + ts.tv_nsec / 1000;
}

/*
 * Pages that go away while they are migrated do not stay mapped for the GPU. Each
 * round they go at another moment of a migration. Nothing may come after that: to
 * unmap once more would hide it.
 */
TEST_F_TIMEOUT(nouveau, dropped, TIMEOUT_S)
{
	struct dropper d = {};
	struct p2p_buf *buf = &d.buf;
	size_t i, first, gone = 0;
	unsigned long took;
	void *failed;
	int round;

	if (!getenv("P2PTEST_JUDGE"))
		SKIP(return, "P2PTEST_JUDGE does not say who sees video memory");
	p2p_buf_alloc(_metadata, buf, 64, BEFORE);
	/* The first time takes longer: there is no chunk yet */
	to_vram(_metadata, self->fd, buf);
	all_home(_metadata, buf, BEFORE);
	took = now_us();
	to_vram(_metadata, self->fd, buf);
	took = now_us() - took;
	for (round = 0; round < DROPS; round++) {
		p2p_fill(buf->p, BEFORE, 0, buf->len);
		d.delay_us = took * round / DROPS;
		ASSERT_EQ(0, pthread_create(&d.thread, NULL, dropper_run, &d));
		EXPECT_EQ(0, nouveau_to_vram(self->fd, buf->p, buf->len));
		ASSERT_EQ(0, pthread_join(d.thread, &failed));
		EXPECT_EQ(NULL, failed);
		for (i = first = 0; i <= buf->pages; i++) {
			if (i < buf->pages &&
			    !nouveau_resident(buf->p + i * P2P_PAGE, P2P_PAGE))
				continue;
			if (i > first)
				expect_unmapped(buf, first, i - first);
			gone += i - first;
			first = i + 1;
		}
	}
	TH_LOG("%lu us, %zu of %zu pages had gone", took, gone,
	       round * buf->pages);
	EXPECT_LT(0U, gone);
	buf_free(_metadata, buf);
}

/* A thread that touches a page, and says when it is about to */
struct looker {
	pthread_t thread;
	const unsigned char *p;
	bool begun;
	unsigned char seen;
};

static void *looker_run(void *arg)
{
	struct looker *l = arg;

	__atomic_store_n(&l->begun, true, __ATOMIC_RELEASE);
	l->seen = __atomic_load_n(l->p, __ATOMIC_RELAXED);
	return NULL;
}

/*
 * A huge page is given back, and there are zeros or a new page in its place, after
 * another thread has touched it and before it comes home: in some rounds while the
 * driver clears a page for it, which takes longest. Nothing that was allocated to bring it home
 * stays behind. Nobody looks at contents in video memory; see nouveau.unmapped for
 * the address.
 */
TEST_F_TIMEOUT(nouveau, dropped_on_the_way_home, TIMEOUT_S)
{
	const long before = allocated("nouveau_dmem_migrate_to_ram", NULL);
	struct p2p_buf buf = {
		.len = P2P_HUGE,
		.pages = P2P_HUGE / P2P_PAGE,
	};
	unsigned long took = 0, start;
	struct looker l = {};
	int round, home = 0;

	buf.p = mmap((void *)NOUVEAU_UNMANAGED_ADDR, buf.len,
		     PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	ASSERT_EQ((void *)NOUVEAU_UNMANAGED_ADDR, buf.p);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_HUGEPAGE));
	l.p = buf.p;
	for (round = 0; round <= DROPS; round++) {
		buf.p[0] = 1;
		if (!round && p2p_huge_bytes(buf.p) != (long)buf.len)
			SKIP(return, "the kernel gives no huge pages");
		to_vram(_metadata, self->fd, &buf);
		l.begun = false;
		ASSERT_EQ(0, pthread_create(&l.thread, NULL, looker_run, &l));
		while (!__atomic_load_n(&l.begun, __ATOMIC_ACQUIRE))
			;
		start = now_us();
		if (!round) {
			ASSERT_EQ(0, pthread_join(l.thread, NULL));
			EXPECT_EQ(1, l.seen);
			took = now_us() - start;
		}
		while (now_us() - start < took * round / DROPS)
			;
		EXPECT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
		/* A page of host memory is nothing that could come home */
		if (round % 2)
			buf.p[0] = 2;
		else
			EXPECT_EQ(buf.len,
				  p2p_compare_byte(buf.p, 0, buf.len));
		if (round)
			ASSERT_EQ(0, pthread_join(l.thread, NULL));
		if (round % 2)
			EXPECT_EQ(2, buf.p[0]);
		home += l.seen == 1;
		EXPECT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
	}
	TH_LOG("%lu us, %d of %d pages came home", took, home, round);
	buf_free(_metadata, &buf);
	EXPECT_EQ(before, allocated("nouveau_dmem_migrate_to_ram", NULL));
}

/* Parent and child share pages of video memory until one of them writes */
TEST_F_TIMEOUT(nouveau, fork, TIMEOUT_S)
{
	struct p2p_buf buf;
	pid_t pid;

	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		size_t same = p2p_compare(buf.p, BEFORE, 0, buf.len);

		p2p_fill(buf.p, OTHER, 0, buf.len);
		_exit(same != buf.len ||
		      p2p_compare(buf.p, OTHER, 0, buf.len) != buf.len);
	}
	p2p_wait_child(_metadata, pid);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

/* The child keeps what the parent writes over */
TEST_F_TIMEOUT(nouveau, fork_and_write, TIMEOUT_S)
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
		if (read(pipes[0], &byte, 1) != 1)
			_exit(2);
		_exit(p2p_compare(buf.p, BEFORE, 0, buf.len) != buf.len);
	}
	p2p_fill(buf.p, AFTER, 0, buf.len);
	ASSERT_EQ(1, write(pipes[1], "", 1));
	p2p_wait_child(_metadata, pid);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	buf_free(_metadata, &buf);
}

/* How many times the driver has set memory aside for pages, 256 MiB each time */
static int chunks(struct __test_metadata *_metadata)
{
	FILE *f = fopen("/proc/iomem", "re");
	char line[128];
	int n = 0;

	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f))
		n += !!strstr(line, "nouveau_dmem");
	fclose(f);
	return n;
}

/*
 * Unmapped video memory can be used again. Nobody looks at contents, and the
 * pages are where the GPU can not have memory of the process mapped: to write
 * an entry for each would take most of the time.
 */
TEST_F_TIMEOUT(nouveau, unmapped, TIMEOUT_S)
{
	struct p2p_buf buf = {
		.len = P2P_HUGE,
		.pages = P2P_HUGE / P2P_PAGE,
	};
	int i, count = 0;

	for (i = 0; i < ROUNDS; i++) {
		buf.p = mmap((void *)NOUVEAU_UNMANAGED_ADDR, buf.len,
			     PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
			     -1, 0);
		ASSERT_EQ((void *)NOUVEAU_UNMANAGED_ADDR, buf.p);
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_HUGEPAGE));
		buf.p[0] = i;
		if (p2p_huge_bytes(buf.p) != (long)buf.len)
			SKIP(return, "the kernel gives no huge pages");
		to_vram(_metadata, self->fd, &buf);
		buf_free(_metadata, &buf);
		if (!i)
			count = chunks(_metadata);
	}
	EXPECT_LT(0, count);
	EXPECT_EQ(count, chunks(_metadata));
}

/* And so can what a process leaves behind */
TEST_F_TIMEOUT(nouveau, exit, TIMEOUT_S)
{
	struct p2p_buf buf;
	pid_t pid;
	int i, fd;

	for (i = 0; i < 3; i++) {
		pid = p2p_fork_child(_metadata);
		if (!pid) {
			fd = nouveau_open();
			if (fd < 0)
				_exit(2);
			p2p_buf_alloc(_metadata, &buf, 64, BEFORE);
			if (nouveau_to_vram(fd, buf.p, buf.len))
				_exit(3);
			if (nouveau_resident(buf.p, buf.len) != 64)
				_exit(4);
			_exit(0);
		}
		p2p_wait_child(_metadata, pid);
	}
	p2p_buf_alloc(_metadata, &buf, 64, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

/* The GPU's file is closed, and what is in video memory still comes home */
TEST_F_TIMEOUT(nouveau, closed, TIMEOUT_S)
{
	struct p2p_buf buf;

	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	ASSERT_EQ(0, close(self->fd));
	self->fd = -1;
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

TEST_F_TIMEOUT(nouveau, bad_input, TIMEOUT_S)
{
	struct p2p_buf buf;
	int fd;

	p2p_buf_alloc(_metadata, &buf, 4, BEFORE);
	EXPECT_EQ(-EINVAL, nouveau_to_vram(self->fd, buf.p, 0));
	fd = nouveau_open_again(self->fd);
	ASSERT_LE(0, fd);
	EXPECT_EQ(-EINVAL, nouveau_to_vram(fd, buf.p, buf.len));
	close(fd);
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	buf_free(_metadata, &buf);
}

/*
 * Windows for peers and buffers that are mapped share BAR1. Windows take at most
 * half of it; so much more is more than what remains if they do.
 */
#define GEM_SIZE(bar)	((bar) / 4 * 3)
#define MAX_WINDOWS	64

/* More than 1 GiB of video memory, which is what the model has */
#define BUFFER_SIZE	(8UL << 20)
#define BUFFERS		140
#define PAGE_MOVES	40

/* A NIC that takes some hundred milliseconds for a page */
#define MAX_NIC_WINDOWS	8

/* How many windows there can be, of 2 MiB each in a BAR that is not large */
static size_t windows(struct __test_metadata *_metadata, int fd, long *bar)
{
	*bar = nouveau_bar1(fd);
	ASSERT_LT(0, *bar);
	return *bar / 2 / P2P_HUGE;
}

/* Touches a page of each 64 KiB only: each touch is seen by a device */
static void gem_fill(__u64 *gem, size_t len, __u64 seed)
{
	size_t i;

	for (i = 0; i < len; i += 16 * P2P_PAGE)
		__atomic_store_n(&gem[i / sizeof(*gem)], seed + i,
				 __ATOMIC_RELAXED);
}

static bool gem_has(const __u64 *gem, size_t len, __u64 seed)
{
	size_t i;

	for (i = 0; i < len; i += 16 * P2P_PAGE) {
		if (__atomic_load_n(&gem[i / sizeof(*gem)],
				    __ATOMIC_RELAXED) != seed + i)
			return false;
	}
	return true;
}

/* Windows of pages that are gone make room for a buffer */
TEST_F_TIMEOUT(nouveau, buffer_after_windows, TIMEOUT_S)
{
	struct p2p_buf bufs[MAX_WINDOWS];
	size_t i, count;
	long bar;
	void *gem;
	int fd;

	count = windows(_metadata, self->fd, &bar);
	if (count > MAX_WINDOWS)
		SKIP(return, "BAR1 is too large to fill it");
	for (i = 0; i < count; i++) {
		if (!p2p_buf_alloc_huge(_metadata, &bufs[i], BEFORE + i))
			return;
		to_vram(_metadata, self->fd, &bufs[i]);
	}
	for (i = 0; i < count; i++)
		buf_free(_metadata, &bufs[i]);

	fd = nouveau_open_again(self->fd);
	ASSERT_LE(0, fd);
	gem = nouveau_gem_map(fd, GEM_SIZE(bar));
	ASSERT_NE(NULL, gem);
	gem_fill(gem, GEM_SIZE(bar), 1);
	EXPECT_TRUE(gem_has(gem, GEM_SIZE(bar), 1));
	EXPECT_EQ(0, munmap(gem, GEM_SIZE(bar)));
	close(fd);
}

/* Windows of pages that are in use do not make room */
TEST_F_TIMEOUT(nouveau, buffer_and_windows, TIMEOUT_S)
{
	struct p2p_buf bufs[MAX_WINDOWS];
	size_t i, count;
	int fd, status;
	pid_t pid;
	void *gem;
	long bar;

	count = windows(_metadata, self->fd, &bar);
	if (count > MAX_WINDOWS)
		SKIP(return, "BAR1 is too large to fill it");
	for (i = 0; i < count; i++) {
		if (!p2p_buf_alloc_huge(_metadata, &bufs[i], BEFORE + i))
			return;
		to_vram(_metadata, self->fd, &bufs[i]);
	}
	fd = nouveau_open_again(self->fd);
	ASSERT_LE(0, fd);
	gem = nouveau_gem_map(fd, GEM_SIZE(bar));
	ASSERT_NE(NULL, gem);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		gem_fill(gem, GEM_SIZE(bar), 1);
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);

	for (i = 0; i < count; i++) {
		all_home(_metadata, &bufs[i], BEFORE + i);
		buf_free(_metadata, &bufs[i]);
	}
	gem_fill(gem, GEM_SIZE(bar), 2);
	EXPECT_TRUE(gem_has(gem, GEM_SIZE(bar), 2));
	EXPECT_EQ(0, munmap(gem, GEM_SIZE(bar)));
	close(fd);
}

/*
 * Buffers are moved out of video memory by the same engine as pages: when there
 * is no room for one more, the driver takes room from the oldest. Both happen all
 * the time until the pages have moved often enough.
 */
TEST_F_TIMEOUT(nouveau, buffers_move, TIMEOUT_S)
{
	long handles[BUFFERS];
	struct p2p_buf buf;
	int i, fd, status;
	bool *enough;
	pid_t pid;

	enough = mmap(NULL, P2P_PAGE, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, enough);
	p2p_buf_alloc(_metadata, &buf, 64, BEFORE);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		fd = nouveau_open_again(self->fd);
		if (fd < 0)
			_exit(2);
		do {
			for (i = 0; i < BUFFERS; i++) {
				handles[i] = nouveau_gem_new(fd, BUFFER_SIZE);
				if (handles[i] < 0)
					_exit(3);
			}
			for (i = 0; i < BUFFERS; i++)
				nouveau_gem_close(fd, handles[i]);
		} while (!__atomic_load_n(enough, __ATOMIC_RELAXED));
		_exit(0);
	}
	for (i = 0; i < PAGE_MOVES; i++) {
		to_vram(_metadata, self->fd, &buf);
		all_home(_metadata, &buf, BEFORE + i);
		p2p_fill(buf.p, BEFORE + i + 1, 0, buf.len);
	}
	__atomic_store_n(enough, true, __ATOMIC_RELAXED);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	buf_free(_metadata, &buf);
	EXPECT_EQ(0, munmap(enough, P2P_PAGE));
}

/* Some tests are for GPUs that lack something, which no driver can tell */
static bool has_flaw(const char *flaw)
{
	const char *given = getenv("P2PTEST_GPU_FLAW");

	return given && !strcmp(given, flaw);
}

/* Nothing is moved any more, and memory that nobody has touched remains usable */
static void stays_home(struct __test_metadata *_metadata, SELF *self)
{
	struct p2p_buf buf = { .pages = 16, .len = 16 * P2P_PAGE };

	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, buf.p);
	EXPECT_EQ(0, nouveau_to_vram(self->fd, buf.p, buf.len));
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	p2p_fill(buf.p, BEFORE, 0, buf.len);
	EXPECT_EQ(0, nouveau_to_vram(self->fd, buf.p, buf.len));
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

/*
 * The GPU's copy engine fails at some time, which is up to whoever started the
 * guest. Pages that it was to move stay where they are, with their contents.
 * All others are lost, and a signal tells. If the engine goes on after all, within
 * as many seconds as P2PTEST_GPU_DIES says, it does not write to pages that are
 * somebody else's by then: the model of a GPU sees that.
 */
TEST_F_TIMEOUT(nouveau, copy_engine_fails, TIMEOUT_S)
{
	const char *seconds = getenv("P2PTEST_GPU_DIES");
	struct p2p_buf buf;
	int i, status;
	long there;

	if (!seconds)
		SKIP(return, "P2PTEST_GPU_DIES does not say that the GPU does");
	for (i = 0; i < ROUNDS; i++) {
		p2p_buf_alloc(_metadata, &buf, 16, BEFORE + i);
		EXPECT_EQ(0, nouveau_to_vram(self->fd, buf.p, buf.len));
		there = nouveau_resident(buf.p, buf.len);
		if (!there)
			break;
		ASSERT_EQ((long)buf.pages, there);
		status = look(_metadata, &buf, BEFORE + i);
		if (WIFSIGNALED(status)) {
			EXPECT_EQ(SIGBUS, WTERMSIG(status));
			/* Not only the first time */
			status = look(_metadata, &buf, BEFORE + i);
			EXPECT_TRUE(WIFSIGNALED(status) &&
				    WTERMSIG(status) == SIGBUS);
			stays_home(_metadata, self);
			p2p_sleep_ms(1000 * strtoul(seconds, NULL, 10));
			buf_free(_metadata, &buf);
			return;
		}
		ASSERT_EQ(0, status);
		buf_free(_metadata, &buf);
	}
	ASSERT_LT(i, ROUNDS)
		TH_LOG("the copy engine works");
	all_home(_metadata, &buf, BEFORE + i);
	stays_home(_metadata, self);
	p2p_sleep_ms(1000 * strtoul(seconds, NULL, 10));
	all_home(_metadata, &buf, BEFORE + i);
	buf_free(_metadata, &buf);
}

/* A thread that has its memory moved there and back while others do the same */
struct mover {
	pthread_t thread;
	struct p2p_buf buf;
	int fd;
	__u64 seed;		/* nobody else has the same bytes */
	int rounds;
	int ret;
	int wrong;
	bool begun;
};

static void *mover_run(void *arg)
{
	struct mover *m = arg;
	int i;

	for (i = 0; i < m->rounds && !m->ret && !m->wrong; i++) {
		m->ret = nouveau_to_vram(m->fd, m->buf.p, m->buf.len);
		m->wrong = p2p_compare(m->buf.p, m->seed + i, 0, m->buf.len) !=
			   m->buf.len;
		p2p_fill(m->buf.p, m->seed + i + 1, 0, m->buf.len);
	}
	return NULL;
}

TEST_F_TIMEOUT(nouveau, threads, TIMEOUT_S)
{
	struct mover movers[4];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(movers); i++) {
		movers[i] = (struct mover){
			.fd = self->fd,
			.seed = (i + 1) << 20,
			.rounds = 20,
		};
		p2p_buf_alloc(_metadata, &movers[i].buf, 16, movers[i].seed);
		ASSERT_EQ(0, pthread_create(&movers[i].thread, NULL, mover_run,
					    &movers[i]));
	}
	for (i = 0; i < ARRAY_SIZE(movers); i++) {
		ASSERT_EQ(0, pthread_join(movers[i].thread, NULL));
		EXPECT_EQ(0, movers[i].ret);
		EXPECT_FALSE(movers[i].wrong);
		buf_free(_metadata, &movers[i].buf);
	}
}

#define BIND	"/sys/bus/pci/drivers/nouveau/bind"

/* By a child: if the driver waits forever, then not for the test */
static bool unbinds(struct __test_metadata *_metadata, const char *name)
{
	pid_t pid;
	int i, status;

	/* Also if the test does not get to bind_again() */
	ASSERT_EQ(0, p2p_put_back_by(BIND, name));
	pid = p2p_fork_child(_metadata);
	if (!pid)
		_exit(!!p2p_pci_unbind("nouveau", name));
	for (i = 0; i < UNBIND_S * 10; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return !status;
		p2p_sleep_ms(100);
	}
	return false;
}

static void bind_again(struct __test_metadata *_metadata, int *fd,
		       const char *name)
{
	int i;

	EXPECT_EQ(0, close(*fd));
	*fd = -1;
	ASSERT_EQ(0, p2p_pci_bind("nouveau", name, -1));
	for (i = 0; i < 100 && *fd < 0; i++) {
		p2p_sleep_ms(100);
		*fd = nouveau_open();
	}
	ASSERT_LE(0, *fd);
}

/*
 * The driver goes while the process has the GPU's file and pages in video memory:
 * they come home by themselves. When it is back, it can do what it could before.
 */
TEST_F_TIMEOUT(nouveau, unbound, TIMEOUT_S)
{
	const long lists = allocated("list_lru_init", "ttm_pool");
	char name[P2P_PCI_NAME];
	struct p2p_buf buf, huge;

	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	if (!p2p_buf_alloc_huge(_metadata, &huge, OTHER))
		return;
	to_vram(_metadata, self->fd, &huge);
	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	ASSERT_TRUE(unbinds(_metadata, name));
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	EXPECT_EQ(0, nouveau_resident(huge.p, huge.len));
	all_home(_metadata, &buf, BEFORE);
	all_home(_metadata, &huge, OTHER);
	EXPECT_GT(0, nouveau_to_vram(self->fd, buf.p, buf.len));
	bind_again(_metadata, &self->fd, name);
	EXPECT_EQ(lists, allocated("list_lru_init", "ttm_pool"));
	to_vram(_metadata, self->fd, &buf);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
	buf_free(_metadata, &huge);
}

/* The driver goes while threads have pages migrated, in whatever moment that is */
TEST_F_TIMEOUT(nouveau, unbound_busy, TIMEOUT_S)
{
	struct mover movers[3];
	char name[P2P_PCI_NAME];
	size_t i;
	int round;

	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	for (round = 0; round < 2; round++) {
		for (i = 0; i < ARRAY_SIZE(movers); i++) {
			struct mover *m = &movers[i];

			*m = (struct mover){
				.fd = self->fd,
				.seed = (i + 1) << 20,
				.rounds = INT_MAX,
			};
			/* One takes so long that it is moving at that time */
			p2p_buf_alloc(_metadata, &m->buf, i ? 32 : 4096, m->seed);
			ASSERT_EQ(0, pthread_create(&m->thread, NULL, mover_run,
						    m));
		}
		p2p_sleep_ms(300);
		ASSERT_TRUE(unbinds(_metadata, name));
		for (i = 0; i < ARRAY_SIZE(movers); i++) {
			ASSERT_EQ(0, pthread_join(movers[i].thread, NULL));
			EXPECT_EQ(-ENODEV, movers[i].ret);
			EXPECT_FALSE(movers[i].wrong);
			buf_free(_metadata, &movers[i].buf);
		}
		bind_again(_metadata, &self->fd, name);
	}
}

/* What takes hours: more memory than there is anywhere. It costs nothing by itself */
#define LARGE_LEN	(4UL << 40)
#define LARGE_MS	20000

static pid_t bind_large(struct __test_metadata *_metadata, int fd)
{
	pid_t pid = p2p_fork_child(_metadata);
	void *p;

	if (!pid) {
		p = mmap(NULL, LARGE_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			 MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p != MAP_FAILED)
			nouveau_to_vram(fd, p, LARGE_LEN);
		_exit(0);
	}
	p2p_sleep_ms(2000);
	return pid;
}

TEST_F_TIMEOUT(nouveau, killed, TIMEOUT_S)
{
	pid_t pid = bind_large(_metadata, self->fd);
	__u64 start = p2p_now_ms();

	p2p_kill_child(_metadata, pid);
	EXPECT_GT(LARGE_MS, (long)(p2p_now_ms() - start));
}

/* The driver goes, and does not wait for the end of such a call */
TEST_F_TIMEOUT(nouveau, unbound_large, TIMEOUT_S)
{
	char name[P2P_PCI_NAME];
	__u64 start;
	pid_t pid;

	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	pid = bind_large(_metadata, self->fd);
	start = p2p_now_ms();
	ASSERT_TRUE(unbinds(_metadata, name));
	EXPECT_GT(LARGE_MS, (long)(p2p_now_ms() - start));
	p2p_wait_child(_metadata, pid);
	bind_again(_metadata, &self->fd, name);
}

/* More than a call has gone through before the driver goes, on a slow kernel, too */
#define MAPPINGS	30000
#define MAPPINGS_MS	15000

static void *bind_all(void *arg)
{
	struct mover *m = arg;

	__atomic_store_n(&m->begun, true, __ATOMIC_RELEASE);
	m->ret = nouveau_to_vram(m->fd, m->buf.p, m->buf.len);
	return NULL;
}

/*
 * The driver goes during a call that goes on for long, but does not move a page:
 * shared memory stays where it is
 */
TEST_F_TIMEOUT(nouveau, unbound_mappings, TIMEOUT_S)
{
	struct mover m = { .fd = self->fd };
	char name[P2P_PCI_NAME];
	__u64 start;
	int i;

	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	m.buf.len = MAPPINGS * 2 * P2P_PAGE;
	m.buf.p = mmap(NULL, m.buf.len, PROT_READ, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	ASSERT_NE(MAP_FAILED, m.buf.p);
	start = p2p_now_ms();
	for (i = 0; i < MAPPINGS && p2p_now_ms() - start < MAPPINGS_MS; i++)
		ASSERT_EQ(0, mprotect(m.buf.p + 2 * i * P2P_PAGE, P2P_PAGE,
				      PROT_READ | PROT_WRITE));
	ASSERT_EQ(0, pthread_create(&m.thread, NULL, bind_all, &m));
	while (!__atomic_load_n(&m.begun, __ATOMIC_ACQUIRE))
		p2p_sleep_ms(1);
	p2p_sleep_ms(10);
	ASSERT_TRUE(unbinds(_metadata, name));
	ASSERT_EQ(0, pthread_join(m.thread, NULL));
	EXPECT_EQ(0, m.ret);
	buf_free(_metadata, &m.buf);
	bind_again(_metadata, &self->fd, name);
}

/* A thread that touches one page after another */
struct toucher {
	pthread_t thread;
	struct p2p_buf buf;
	size_t touched;
	int wrong;
};

static void *toucher_run(void *arg)
{
	struct toucher *t = arg;
	size_t i, pos;

	for (i = 0; i < t->buf.pages; i++) {
		pos = i * P2P_PAGE;
		t->wrong |= p2p_compare(t->buf.p + pos, BEFORE, pos, P2P_PAGE) !=
			    P2P_PAGE;
		__atomic_store_n(&t->touched, i + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Is it on its way with a page for as long as 0.5 s? */
static bool is_slow(struct toucher *t)
{
	size_t now, before = 0;
	int same;

	for (same = 0; same < 50; same++) {
		now = __atomic_load_n(&t->touched, __ATOMIC_ACQUIRE);
		if (now == t->buf.pages)
			return false;
		if (now != before)
			same = 0;
		before = now;
		p2p_sleep_ms(10);
	}
	return true;
}

/*
 * The driver goes while a page is on its way home, which takes seconds: that is up
 * to whoever started the guest. The driver waits for the page.
 */
TEST_F_TIMEOUT(nouveau, unbound_touched, TIMEOUT_S)
{
	struct toucher t = { };
	char name[P2P_PCI_NAME];
	bool slow = false;
	int i;

	if (!has_flaw("slow"))
		SKIP(return, "P2PTEST_GPU_FLAW is not \"slow\"");
	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	for (i = 0; i < ROUNDS && !slow; i++) {
		p2p_buf_alloc(_metadata, &t.buf, 16, BEFORE);
		to_vram(_metadata, self->fd, &t.buf);
		t.touched = 0;
		ASSERT_EQ(0, pthread_create(&t.thread, NULL, toucher_run, &t));
		slow = is_slow(&t);
		if (slow)
			ASSERT_TRUE(unbinds(_metadata, name));
		ASSERT_EQ(0, pthread_join(t.thread, NULL));
		EXPECT_FALSE(t.wrong);
		all_home(_metadata, &t.buf, BEFORE);
		buf_free(_metadata, &t.buf);
	}
	ASSERT_TRUE(slow)
		TH_LOG("no page is slow");
	bind_again(_metadata, &self->fd, name);
}

/* Free memory of the host that no page of zeros should come from unasked */
#define DIRTY	(256UL << 20)

/*
 * The copy engine fails, and then the driver goes. Pages that it can not bring
 * home any more are zeros then, and not what somebody else had in host memory.
 */
TEST_F_TIMEOUT(nouveau, unbound_after_failure, TIMEOUT_S)
{
	char name[P2P_PCI_NAME];
	long there = 0, zeros = 0;
	struct p2p_buf buf;
	unsigned char *p;
	int i;

	if (!has_flaw("dies"))
		SKIP(return, "P2PTEST_GPU_FLAW is not \"dies\"");
	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	for (i = 0; i < ROUNDS && !there; i++) {
		p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
		to_vram(_metadata, self->fd, &buf);
		if (WIFSIGNALED(look(_metadata, &buf, BEFORE)))
			there = nouveau_resident(buf.p, buf.len);
		else
			buf_free(_metadata, &buf);
	}
	ASSERT_LT(0, there)
		TH_LOG("no page is lost");
	p = mmap(NULL, DIRTY, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	memset(p, 0xaa, DIRTY);
	ASSERT_EQ(0, munmap(p, DIRTY));
	ASSERT_TRUE(unbinds(_metadata, name));
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	for (i = 0; i < (int)buf.pages; i++) {
		const size_t pos = i * P2P_PAGE;

		if (p2p_compare(buf.p + pos, BEFORE, pos, P2P_PAGE) == P2P_PAGE)
			continue;
		EXPECT_EQ(P2P_PAGE, p2p_compare_byte(buf.p + pos, 0, P2P_PAGE));
		zeros++;
	}
	EXPECT_EQ(there, zeros);
	buf_free(_metadata, &buf);
}

/* With room for pages and none for huge pages, a huge page stays in host memory */
TEST_F_TIMEOUT(nouveau, no_room, TIMEOUT_S)
{
	struct p2p_buf buf, huge;

	if (!has_flaw("no-room"))
		SKIP(return, "P2PTEST_GPU_FLAW is not \"no-room\"");
	p2p_buf_alloc(_metadata, &buf, 16, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	if (!p2p_buf_alloc_huge(_metadata, &huge, OTHER))
		return;
	EXPECT_EQ(0, nouveau_to_vram(self->fd, huge.p, huge.len));
	all_home(_metadata, &huge, OTHER);
	all_home(_metadata, &buf, BEFORE);
	to_vram(_metadata, self->fd, &buf);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &huge);
	buf_free(_metadata, &buf);
}

/* A GPU whose memory is of no use to programs leaves theirs where it is */
TEST_F_TIMEOUT(nouveau, no_copy_engine, TIMEOUT_S)
{
	char name[P2P_PCI_NAME];

	if (!has_flaw("no-copy-engine"))
		SKIP(return, "P2PTEST_GPU_FLAW is not \"no-copy-engine\"");
	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	stays_home(_metadata, self);
	ASSERT_TRUE(unbinds(_metadata, name));
	bind_again(_metadata, &self->fd, name);
	stays_home(_metadata, self);
}

/* A GPU that the driver refuses is refused for the same reason each time */
TEST(refused)
{
	DIR *dir = opendir("/sys/bus/pci/devices");
	char name[P2P_PCI_NAME] = "", text[16];
	struct dirent *entry;
	int i;

	if (!has_flaw("refused"))
		SKIP(return, "P2PTEST_GPU_FLAW is not \"refused\"");
	ASSERT_NE(NULL, dir);
	while ((entry = readdir(dir))) {
		if (!p2p_pci_attr_get(entry->d_name, "vendor", text,
				      sizeof(text)) &&
		    !strcmp(text, "0x10de"))
			snprintf(name, sizeof(name), "%.15s", entry->d_name);
	}
	closedir(dir);
	ASSERT_STRNE("", name);
	for (i = 0; i < 2; i++)
		EXPECT_EQ(-EINVAL, p2p_pci_bind("nouveau", name, -1));
}

static unsigned int fail_nth(struct __test_metadata *_metadata, int fd,
			     unsigned int n)
{
	char left[16] = "", next[16];

	ASSERT_LT(0, pread(fd, left, sizeof(left) - 1, 0));
	snprintf(next, sizeof(next), "%u", n);
	ASSERT_LT(0, pwrite(fd, next, strlen(next), 0));
	return strtoul(left, NULL, 10);
}

/*
 * Each allocation fails once, on the way to video memory and on the way home, see
 * Documentation/fault-injection/fault-injection.rst. The first time, the driver has
 * nothing yet: neither video memory, nor windows. No byte is lost.
 */
TEST_F_TIMEOUT(nouveau, no_memory, TIMEOUT_S)
{
	int nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	char name[P2P_PCI_NAME];
	struct p2p_buf buf;
	unsigned int n, left;
	size_t pos;
	int home;

	if (!getenv("P2PTEST_FAIL_NTH"))
		SKIP(return, "P2PTEST_FAIL_NTH does not say that allocations fail");
	ASSERT_LE(0, nth);
	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	ASSERT_TRUE(unbinds(_metadata, name));
	bind_again(_metadata, &self->fd, name);
	for (home = 0; home < 2; home++) {
		for (n = 1, left = 0; !left; n++) {
			p2p_buf_alloc(_metadata, &buf, 16, BEFORE + n);
			if (home)
				to_vram(_metadata, self->fd, &buf);
			fail_nth(_metadata, nth, n);
			if (!home)
				nouveau_to_vram(self->fd, buf.p, buf.len);
			for (pos = 0; home && pos < buf.len; pos += P2P_PAGE)
				p2p_compare_byte(buf.p + pos, 0, 1);
			left = fail_nth(_metadata, nth, 0);
			all_home(_metadata, &buf, BEFORE + n);
			buf_free(_metadata, &buf);
		}
		TH_LOG("%s: %u allocations failed", home ? "home" : "there",
		       n - 2);
		EXPECT_LT(2U, n);
	}
	close(nth);
}

/*
 * A buffer that there is no memory for page tables of BAR1 for gets there the next
 * time. It is smaller than a huge page, so it needs such tables.
 */
TEST_F_TIMEOUT(nouveau, no_memory_in_bar1, TIMEOUT_S)
{
	const size_t len = P2P_HUGE / 2;
	unsigned int n, left = 0, failed = 0;
	int fd, nth, status;
	unsigned char *gem;
	pid_t pid;

	if (!getenv("P2PTEST_FAIL_NTH"))
		SKIP(return, "P2PTEST_FAIL_NTH does not say that allocations fail");
	for (n = 1; !left; n++) {
		fd = nouveau_open_again(self->fd);
		ASSERT_LE(0, fd);
		gem = nouveau_gem_map(fd, len);
		ASSERT_NE(NULL, gem);
		pid = p2p_fork_child(_metadata);
		if (!pid) {
			signal(SIGBUS, SIG_DFL);
			nth = open("/proc/thread-self/fail-nth",
				   O_RDWR | O_CLOEXEC);
			if (nth < 0)
				_exit(2);
			fail_nth(_metadata, nth, n);
			__atomic_store_n(gem, 1, __ATOMIC_RELAXED);
			_exit(!fail_nth(_metadata, nth, 0));
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		if (WIFSIGNALED(status)) {
			EXPECT_EQ(SIGBUS, WTERMSIG(status));
			failed++;
		} else {
			ASSERT_GE(1, WEXITSTATUS(status));
			left = !WEXITSTATUS(status);
		}
		pid = p2p_fork_child(_metadata);
		if (!pid) {
			signal(SIGBUS, SIG_DFL);
			gem_fill((void *)gem, len, n);
			_exit(!gem_has((void *)gem, len, n));
		}
		p2p_wait_child(_metadata, pid);
		EXPECT_EQ(0, munmap(gem, len));
		close(fd);
	}
	TH_LOG("%u allocations failed, %u for BAR1", n - 2, failed);
	EXPECT_LT(0U, failed);
}

/*
 * Without a huge page in host memory, pages of one come home each by itself. If
 * not, the page fault goes on for ever.
 */
#define HUGE_TIMEOUT_S	120

TEST_F_TIMEOUT(nouveau, no_huge_page, HUGE_TIMEOUT_S)
{
	const size_t first = 100 * P2P_PAGE;
	struct p2p_buf buf;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	to_vram(_metadata, self->fd, &buf);
	if (!p2p_huge_pages_fail(_metadata, true))
		return;
	p2p_expect_pattern(_metadata, "first", buf.p + first, BEFORE, first,
			   P2P_PAGE);
	EXPECT_EQ((long)buf.pages - 1, nouveau_resident(buf.p, buf.len));
	p2p_expect_pattern(_metadata, "all", buf.p, BEFORE, 0, buf.len);
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	p2p_huge_pages_fail(_metadata, false);
	to_vram(_metadata, self->fd, &buf);
	all_home(_metadata, &buf, BEFORE);
	buf_free(_metadata, &buf);
}

/* The driver goes while there is no memory for a huge page: it waits for some */
TEST_F_TIMEOUT(nouveau, no_huge_page_unbound, HUGE_TIMEOUT_S)
{
	char name[P2P_PCI_NAME];
	struct p2p_buf buf;
	int status;
	pid_t pid;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	to_vram(_metadata, self->fd, &buf);
	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	if (!p2p_huge_pages_fail(_metadata, true))
		return;
	ASSERT_EQ(0, p2p_put_back_by(BIND, name));
	pid = p2p_fork_child(_metadata);
	if (!pid)
		_exit(!!p2p_pci_unbind("nouveau", name));
	p2p_sleep_ms(1000);
	EXPECT_EQ(0, waitpid(pid, &status, WNOHANG));
	p2p_huge_pages_fail(_metadata, false);
	p2p_wait_child(_metadata, pid);
	EXPECT_EQ(0, nouveau_resident(buf.p, buf.len));
	all_home(_metadata, &buf, BEFORE);
	bind_again(_metadata, &self->fd, name);
	buf_free(_metadata, &buf);
}

#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"

/* Memory that the kernel may take from the process without writing it anywhere */
#define LAZY	(256UL << 20)

/*
 * So many pages move to video memory meanwhile. None is next to another, so that
 * nouveau allocates a node for each when it maps it.
 */
#define LAZY_MOVES	1600UL
#define LAZY_STEP	(2 * P2P_PAGE)

/* What a machine of tests has; a larger one would swap and kill until all is full */
#define MAX_MEMORY_KB	(8L << 20)

/*
 * Memory is so short that each allocation takes some from this process, while it has
 * pages moved. The driver allocates with a lock that its notifier takes, too: if it
 * took memory from the process there, it would wait for itself.
 */
TEST_F_TIMEOUT(nouveau, reclaim, TIMEOUT_S)
{
	char min[P2P_VALUE];
	long free, stalls;
	unsigned long i;
	unsigned char *lazy, *p;
	long there = 0;
	int ret = 0;

	if (access(MIN_FREE, W_OK))
		SKIP(return, MIN_FREE " can not be written");
	if (p2p_number_in("/proc/meminfo", "MemTotal:") > MAX_MEMORY_KB)
		SKIP(return, "too much memory to be short of it");
	/* Let it allocate now what it needs only once */
	there_and_back(_metadata, self, 1, 1);
	p = mmap(NULL, LAZY_MOVES * LAZY_STEP, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	madvise(p, LAZY_MOVES * LAZY_STEP, MADV_NOHUGEPAGE);
	lazy = mmap(NULL, LAZY, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, lazy);
	memset(lazy, 1, LAZY);
	ASSERT_EQ(0, madvise(lazy, LAZY, MADV_FREE));

	free = p2p_number_in("/proc/meminfo", "MemFree:");
	stalls = p2p_number_in("/proc/vmstat", "allocstall_");
	snprintf(min, sizeof(min), "%lu", free + LAZY / 1024 / 4 * 3);
	EXPECT_EQ(0, p2p_change(MIN_FREE, min));
	for (i = 0; i < LAZY_MOVES && !ret; i++) {
		p[i * LAZY_STEP] = i;
		ret = nouveau_to_vram(self->fd, p + i * LAZY_STEP, P2P_PAGE);
	}
	p2p_put_back();
	stalls = p2p_number_in("/proc/vmstat", "allocstall_") - stalls;
	EXPECT_EQ(0, ret);
	for (i = 0; i < LAZY_MOVES; i++) {
		there += nouveau_resident(p + i * LAZY_STEP, P2P_PAGE);
		EXPECT_EQ((unsigned char)i, p[i * LAZY_STEP]);
	}
	TH_LOG("%ld times memory was taken at once, %ld of %lu pages moved",
	       stalls, there, LAZY_MOVES);
	EXPECT_LT(0, stalls);
	EXPECT_LT(0, there);
	EXPECT_EQ(0, munmap(lazy, LAZY));
	EXPECT_EQ(0, munmap(p, LAZY_MOVES * LAZY_STEP));
}

FIXTURE(nouveau_nic)
{
	int fd;
	struct p2p_nic nic;
	enum p2p_expect path;
};

#define SELF_NIC FIXTURE_DATA(nouveau_nic)

FIXTURE_SETUP(nouveau_nic)
{
	int path = p2p_expect(0);

	self->nic.fd = -1;
	self->fd = nouveau_start(_metadata);
	if (self->fd < 0)
		return;
	if (!p2p_nic_count())
		SKIP(return, "no test NIC: no /dev/" P2P_NIC_DRIVER "<N>");
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	if (path == P2P_EXPECT_UNKNOWN)
		SKIP(return, "P2PTEST_EXPECT does not say what path there is");
	self->path = path;
	ASSERT_EQ(0, p2p_nic_open(&self->nic, 0));
}

FIXTURE_TEARDOWN(nouveau_nic)
{
	if (self->nic.fd >= 0)
		p2p_nic_close(&self->nic);
	if (self->fd >= 0)
		close(self->fd);
}

static void nic_transfer(struct __test_metadata *_metadata, SELF_NIC *self,
			 struct p2p_buf *buf)
{
	const bool peer = p2p_peer_path(self->path);
	void *data = calloc(1, buf->len);
	struct p2p_view view;

	ASSERT_NE(NULL, data);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
				 P2PTEST_NIC_MR_WRITE, &buf->handle));
	ASSERT_EQ(0, nouveau_to_vram(self->fd, buf->p, buf->len));
	ASSERT_EQ((long)buf->pages, nouveau_resident(buf->p, buf->len));

	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf->handle, buf->p, data,
				  buf->len, NULL));
	p2p_expect_pattern(_metadata, "NIC read", data, BEFORE, 0, buf->len);
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf->handle, buf->p, buf->len,
				  &view));
	EXPECT_EQ(peer ? buf->pages : 0, view.peer);
	EXPECT_EQ(buf->pages, view.reason[p2p_path_reason(self->path)]);
	EXPECT_EQ(peer ? (long)buf->pages : 0,
		  nouveau_resident(buf->p, buf->len));

	p2p_fill(data, AFTER, 0, buf->len);
	EXPECT_EQ(0, p2p_nic_write(&self->nic, buf->handle, buf->p, data,
				   buf->len, NULL));
	EXPECT_EQ(peer ? (long)buf->pages : 0,
		  nouveau_resident(buf->p, buf->len));
	if (peer && getenv("P2PTEST_JUDGE"))
		expect_mapped(buf, 0, buf->pages, AFTER);
	all_home(_metadata, buf, AFTER);

	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf->handle));
	buf_free(_metadata, buf);
	free(data);
}

TEST_F_TIMEOUT(nouveau_nic, pages, TIMEOUT_S)
{
	struct p2p_buf buf;

	p2p_buf_alloc(_metadata, &buf, 4, BEFORE);
	nic_transfer(_metadata, self, &buf);
}

/*
 * Where the GPU has nothing of the process mapped, and so nothing to unmap, which
 * would also wait for what the NIC has written: it writes to pages there
 */
static void write_unmapped(struct __test_metadata *_metadata, SELF_NIC *self,
			   struct p2p_buf *buf)
{
	unsigned char data[2 * P2P_PAGE];

	buf->pages = 2;
	buf->len = sizeof(data);
	buf->p = mmap((void *)NOUVEAU_UNMANAGED_ADDR, buf->len,
		      PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	ASSERT_EQ((void *)NOUVEAU_UNMANAGED_ADDR, buf->p);
	p2p_fill(buf->p, BEFORE, 0, buf->len);
	to_vram(_metadata, self->fd, buf);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
				 P2PTEST_NIC_MR_WRITE, &buf->handle));
	p2p_fill(data, AFTER, 0, buf->len);
	EXPECT_EQ(0, p2p_nic_write(&self->nic, buf->handle, buf->p, data,
				   buf->len, NULL));
	EXPECT_EQ(p2p_peer_path(self->path) ? (long)buf->pages : 0,
		  nouveau_resident(buf->p, buf->len));
}

TEST_F_TIMEOUT(nouveau_nic, pages_unmapped, TIMEOUT_S)
{
	struct p2p_buf buf;

	write_unmapped(_metadata, self, &buf);
	all_home(_metadata, &buf, AFTER);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	buf_free(_metadata, &buf);
}

/* What the NIC has written is not in the way of who gets the video memory next */
TEST_F_TIMEOUT(nouveau_nic, pages_used_again, TIMEOUT_S)
{
	struct p2p_buf buf, other;

	write_unmapped(_metadata, self, &buf);
	buf_free(_metadata, &buf);
	p2p_buf_alloc(_metadata, &other, buf.pages, OTHER);
	to_vram(_metadata, self->fd, &other);
	all_home(_metadata, &other, OTHER);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	buf_free(_metadata, &other);
}

/* So often pages are freed while somebody else takes some */
#define REUSES	5

/* Takes free pages all the time, and looks at some of them again */
struct taker {
	pthread_t thread;
	int fd;
	bool stop;
	int ret;
	bool wrong;
};

static void *taker_run(void *arg)
{
	const size_t len = 512 * P2P_PAGE;
	struct taker *t = arg;
	unsigned char *p;
	size_t pos;
	int i;

	for (i = 0; !t->ret && !__atomic_load_n(&t->stop, __ATOMIC_RELAXED); i++) {
		p = mmap(NULL, len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED || madvise(p, len, MADV_NOHUGEPAGE)) {
			t->ret = -errno;
			break;
		}
		memset(p, i, len);
		t->ret = nouveau_to_vram(t->fd, p, len);
		for (pos = 0; i % 8 == 0 && pos < len; pos++)
			t->wrong |= p[pos] != (unsigned char)i;
		munmap(p, len);
	}
	return NULL;
}

/*
 * The same while somebody takes free pages: what the NIC has written has to arrive
 * after a page was taken, not only before that.
 */
TEST_F_TIMEOUT(nouveau_nic, pages_used_at_once, TIMEOUT_S)
{
	struct taker taker = { .fd = self->fd };
	struct p2p_buf buf;
	int i;

	ASSERT_EQ(0, pthread_create(&taker.thread, NULL, taker_run, &taker));
	for (i = 0; i < REUSES; i++) {
		write_unmapped(_metadata, self, &buf);
		/* munmap() would wait until nothing moves */
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
		buf_free(_metadata, &buf);
		EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	}
	__atomic_store_n(&taker.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(taker.thread, NULL));
	EXPECT_EQ(0, taker.ret);
	EXPECT_FALSE(taker.wrong);
}

/* A page that is reached, comes home, and is somewhere else the next time */
TEST_F_TIMEOUT(nouveau_nic, moves, TIMEOUT_S)
{
	unsigned char data[P2P_PAGE];
	struct p2p_buf buf, other;
	int i;

	p2p_buf_alloc(_metadata, &buf, 1, BEFORE);
	p2p_buf_alloc(_metadata, &other, 1, OTHER);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	for (i = 0; i < 3; i++) {
		/* This takes the place that the other one has left */
		if (i == 1)
			to_vram(_metadata, self->fd, &other);
		ASSERT_EQ(0, nouveau_to_vram(self->fd, buf.p, buf.len));
		ASSERT_EQ(1, nouveau_resident(buf.p, buf.len));
		p2p_fill(data, AFTER + i, 0, buf.len);
		EXPECT_EQ(0, p2p_nic_write(&self->nic, buf.handle, buf.p, data,
					   buf.len, NULL));
		all_home(_metadata, &buf, AFTER + i);
		/* Video memory still has what was written before */
		p2p_fill(buf.p, BEFORE + i, 0, buf.len);
		EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					  buf.len, NULL));
		p2p_expect_pattern(_metadata, "NIC read", data, BEFORE + i, 0,
				   buf.len);
	}
	all_home(_metadata, &other, OTHER);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	buf_free(_metadata, &buf);
	buf_free(_metadata, &other);
}

/* Some pages of a huge one, by its NIC */
TEST_F_TIMEOUT(nouveau_nic, huge, TIMEOUT_S)
{
	const size_t pos = 300 * P2P_PAGE, len = 2 * P2P_PAGE;
	unsigned char data[2 * P2P_PAGE];
	struct p2p_buf buf;

	if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
		return;
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	ASSERT_EQ(0, nouveau_to_vram(self->fd, buf.p, buf.len));
	ASSERT_EQ((long)buf.pages, nouveau_resident(buf.p, buf.len));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p + pos, data,
				  len, NULL));
	p2p_expect_pattern(_metadata, "NIC read", data, BEFORE, pos, len);
	if (p2p_peer_path(self->path))
		EXPECT_EQ((long)buf.pages, nouveau_resident(buf.p, buf.len));
	all_home(_metadata, &buf, BEFORE);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	buf_free(_metadata, &buf);
}

/* A NIC that writes a buffer and reads it back, page by page, over and over */
struct dma {
	pthread_t thread;
	const struct p2p_nic *nic;
	struct p2p_buf buf;
	bool stop;
	unsigned int done;	/* rounds */
	const char *wrong;
};

/* Few pages, because the NIC is slow */
#define DMA_PAGES	2

static const char *dma_round(struct dma *d, __u64 seed)
{
	unsigned char data[P2P_PAGE];
	size_t pos;

	for (pos = 0; pos < d->buf.len; pos += P2P_PAGE) {
		p2p_fill(data, seed, pos, P2P_PAGE);
		if (p2p_nic_write(d->nic, d->buf.handle, d->buf.p + pos, data,
				  P2P_PAGE, NULL))
			return "the NIC can not write";
		memset(data, 0, sizeof(data));
		if (p2p_nic_read(d->nic, d->buf.handle, d->buf.p + pos, data,
				 P2P_PAGE, NULL))
			return "the NIC can not read";
		if (p2p_compare(data, seed, pos, P2P_PAGE) != P2P_PAGE)
			return "the NIC reads something else";
	}
	return NULL;
}

static void *dma_run(void *arg)
{
	struct dma *d = arg;

	while (!d->wrong && !__atomic_load_n(&d->stop, __ATOMIC_RELAXED)) {
		d->wrong = dma_round(d, AFTER + d->done);
		if (!d->wrong)
			__atomic_fetch_add(&d->done, 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&d->stop, true, __ATOMIC_RELAXED);
	return NULL;
}

/* Return when a round that begins after this call is over, or the NIC has failed */
static void dma_wait(struct dma *d)
{
	unsigned int done = __atomic_load_n(&d->done, __ATOMIC_RELAXED);

	while (!__atomic_load_n(&d->stop, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&d->done, __ATOMIC_RELAXED) < done + 2)
		p2p_sleep_ms(1);
}

/*
 * The driver goes while the NIC writes and reads pages in video memory. The pages
 * come home, and the NIC goes on with them there. When the driver is back, the NIC
 * reaches them in video memory again.
 */
TEST_F_TIMEOUT(nouveau_nic, unbound_in_use, TIMEOUT_S)
{
	const bool peer = p2p_peer_path(self->path);
	struct dma d = { .nic = &self->nic };
	struct p2p_buf *buf = &d.buf;
	char name[P2P_PCI_NAME];
	struct p2p_view view;
	int round;

	ASSERT_EQ(0, nouveau_pci_name(self->fd, name));
	p2p_buf_alloc(_metadata, buf, DMA_PAGES, BEFORE);
	/* The pages of a process that forks come home when the NIC writes them */
	ASSERT_EQ(0, madvise(buf->p, buf->len, MADV_DONTFORK));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
				 P2PTEST_NIC_MR_WRITE, &buf->handle));
	for (round = 0; round < 2; round++) {
		to_vram(_metadata, self->fd, buf);
		d.stop = false;
		ASSERT_EQ(0, pthread_create(&d.thread, NULL, dma_run, &d));
		dma_wait(&d);
		EXPECT_EQ(peer ? (long)buf->pages : 0,
			  nouveau_resident(buf->p, buf->len));
		ASSERT_TRUE(unbinds(_metadata, name));
		EXPECT_EQ(0, nouveau_resident(buf->p, buf->len));
		dma_wait(&d);
		__atomic_store_n(&d.stop, true, __ATOMIC_RELAXED);
		ASSERT_EQ(0, pthread_join(d.thread, NULL));
		ASSERT_EQ(NULL, d.wrong)
			TH_LOG("round %u: %s", d.done, d.wrong);
		all_home(_metadata, buf, AFTER + d.done - 1);
		EXPECT_GT(0, nouveau_to_vram(self->fd, buf->p, buf->len));
		bind_again(_metadata, &self->fd, name);
	}
	to_vram(_metadata, self->fd, buf);
	EXPECT_EQ(NULL, dma_round(&d, OTHER));
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf->handle, buf->p, buf->len,
				  &view));
	EXPECT_EQ(peer ? buf->pages : 0, view.peer);
	all_home(_metadata, buf, OTHER);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf->handle));
	buf_free(_metadata, buf);
}

/*
 * More huge pages than windows, while a buffer has most of BAR1: the buffer makes
 * room, and keeps its contents. Pages without a window come home.
 */
TEST_F_TIMEOUT(nouveau_nic, more_than_windows, TIMEOUT_S)
{
	struct p2p_buf bufs[MAX_NIC_WINDOWS + 2];
	unsigned char data[P2P_PAGE];
	size_t i, count, peers = 0;
	struct p2p_view view;
	void *gem;
	long bar;
	int fd;

	count = windows(_metadata, self->fd, &bar);
	if (count > MAX_NIC_WINDOWS)
		SKIP(return, "BAR1 is too large for a NIC as slow as this");
	fd = nouveau_open_again(self->fd);
	ASSERT_LE(0, fd);
	gem = nouveau_gem_map(fd, GEM_SIZE(bar));
	ASSERT_NE(NULL, gem);
	gem_fill(gem, GEM_SIZE(bar), 1);
	for (i = 0; i < count + 2; i++) {
		struct p2p_buf *buf = &bufs[i];

		if (!p2p_buf_alloc_huge(_metadata, buf, BEFORE + i))
			return;
		ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
					 P2PTEST_NIC_MR_WRITE, &buf->handle));
		ASSERT_EQ(0, nouveau_to_vram(self->fd, buf->p, buf->len));
		ASSERT_EQ((long)buf->pages,
			  nouveau_resident(buf->p, buf->len));
	}
	for (i = 0; i < count + 2; i++) {
		struct p2p_buf *buf = &bufs[i];
		const size_t pos = i * P2P_PAGE;

		EXPECT_EQ(0, p2p_nic_read(&self->nic, buf->handle,
					  buf->p + pos, data, P2P_PAGE, NULL));
		p2p_expect_pattern(_metadata, "NIC read", data, BEFORE + i,
				   pos, P2P_PAGE);
		ASSERT_EQ(0, p2p_nic_view(&self->nic, buf->handle, buf->p + pos,
					  P2P_PAGE, &view));
		peers += view.peer;
	}
	EXPECT_EQ(p2p_peer_path(self->path) ? count : 0, peers);
	for (i = 0; i < count + 2; i++) {
		all_home(_metadata, &bufs[i], BEFORE + i);
		EXPECT_EQ(0, p2p_nic_dereg(&self->nic, bufs[i].handle));
		buf_free(_metadata, &bufs[i]);
	}
	EXPECT_TRUE(gem_has(gem, GEM_SIZE(bar), 1));
	EXPECT_EQ(0, munmap(gem, GEM_SIZE(bar)));
	close(fd);
}

TEST_HARNESS_MAIN
