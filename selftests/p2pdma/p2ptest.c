// SPDX-License-Identifier: GPL-2.0
/*
 * The part of p2ptest.h that is about the test devices, memory and what is in
 * it; p2p_sysfs.c has the rest
 */
#define _GNU_SOURCE
#include "p2ptest.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Polls, each after a sleep, until something that must come is late */
#define WAIT_STEP_MS	20
#define WAIT_STEPS	3000

/* How often an ioctl is tried, a millisecond apart */
#define IOCTL_TRIES	100

/* Bit 62 of an entry: Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_SWAPPED	0x4000000000000000ULL

void p2p_sleep_ms(unsigned int ms)
{
	struct timespec ts = {
		.tv_sec = ms / 1000,
		.tv_nsec = (long)(ms % 1000) * 1000000,
	};

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

__u64 p2p_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

/* Pattern */

static __u64 splitmix64(__u64 x)
{
	__u64 z = x + 0x9e3779b97f4a7c15ULL;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

/* Whole words are stored in line: a call of memcpy() for each is slow in emulation */
void p2p_fill(void *buf, __u64 seed, size_t pos, size_t len)
{
	unsigned char *p = buf;

	while (len) {
		__u64 word = htole64(splitmix64(seed + pos / 8));
		size_t skip = pos % 8;
		size_t n = 8 - skip < len ? 8 - skip : len;

		if (n == 8)
			memcpy(p, &word, 8);
		else
			memcpy(p, (unsigned char *)&word + skip, n);
		p += n;
		pos += n;
		len -= n;
	}
}

size_t p2p_compare(const void *buf, __u64 seed, size_t pos, size_t len)
{
	const unsigned char *p = buf;
	size_t done = 0;

	while (done < len) {
		__u64 word = htole64(splitmix64(seed + (pos + done) / 8));
		size_t skip = (pos + done) % 8;
		size_t n = 8 - skip < len - done ? 8 - skip : len - done;
		const unsigned char *want = (unsigned char *)&word + skip;

		if (n == 8 ? memcmp(p + done, want, 8) :
			     memcmp(p + done, want, n)) {
			while (p[done] == *want++)
				done++;
			return done;
		}
		done += n;
	}
	return len;
}

size_t p2p_compare_byte(const void *buf, unsigned char byte, size_t len)
{
	const unsigned char *p = buf;
	size_t i;

	for (i = 0; i < len && p[i] == byte; i++)
		;
	return i;
}

/* Memory */

void *p2p_alloc(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, len, MADV_NOHUGEPAGE);
	return p;
}

void *p2p_alloc_huge(size_t len)
{
	size_t room = len + P2P_HUGE;
	char *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		       0);
	char *aligned;

	if (p == MAP_FAILED)
		return NULL;
	aligned = (char *)(((uintptr_t)p + P2P_HUGE - 1) & ~(P2P_HUGE - 1));
	/* A mapping of its own, so that it can be found in smaps */
	if (mmap(aligned, len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != aligned) {
		munmap(p, room);
		return NULL;
	}
	madvise(aligned, len, MADV_HUGEPAGE);
	return aligned;
}

long p2p_huge_bytes(const void *addr)
{
	unsigned long start, end, kb;
	bool found = false;
	char line[512];
	long ret = -ENOENT;
	FILE *f = fopen("/proc/self/smaps", "re");

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			found = start == (unsigned long)addr;
		} else if (found &&
			   sscanf(line, "AnonHugePages: %lu", &kb) == 1) {
			ret = kb * 1024;
			break;
		}
	}
	fclose(f);
	return ret;
}

long p2p_device_private(const void *addr, size_t len)
{
	size_t pages = len / P2P_PAGE, size = pages * sizeof(__u64), i;
	off_t pos = (uintptr_t)addr / P2P_PAGE * sizeof(__u64);
	int fd = p2p_open("/proc/self/pagemap", O_RDONLY);
	__u64 *entries;
	long count = 0;

	if (fd < 0)
		return fd;
	entries = malloc(size);
	if (!entries || pread(fd, entries, size, pos) != (ssize_t)size) {
		count = -EIO;
	} else {
		for (i = 0; i < pages; i++)
			count += !!(entries[i] & PAGEMAP_SWAPPED);
	}
	close(fd);
	free(entries);
	return count;
}

/* Devices */

static int libc_open(const char *path, int flags)
{
	return open(path, flags);
}

static int libc_ioctl(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg);
}

struct p2p_sys p2p_sys = { .open = libc_open, .ioctl = libc_ioctl };

int p2p_open(const char *path, int flags)
{
	int fd = p2p_sys.open(path, flags | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int p2p_ioctl(int fd, unsigned long cmd, void *arg)
{
	int tries;

	for (tries = 1; p2p_sys.ioctl(fd, cmd, arg) < 0; tries++) {
		if ((errno != EINTR && errno != EAGAIN) || tries == IOCTL_TRIES)
			return -errno;
		p2p_sleep_ms(1);
	}
	return 0;
}

int p2p_dev_open(const char *driver, int id)
{
	char path[64];

	snprintf(path, sizeof(path), "/dev/%s%d", driver, id);
	return p2p_open(path, O_RDWR);
}

int p2p_dev_count(const char *driver)
{
	char path[64];
	int n = 0;
	int id;

	for (id = 0; id < P2P_MAX_DEVS; id++) {
		snprintf(path, sizeof(path), "/dev/%s%d", driver, id);
		n += access(path, F_OK) == 0;
	}
	return n;
}

static int dev_ioctl(int fd, unsigned long cmd, void *arg)
{
	return p2p_sys.ioctl(fd, cmd, arg) < 0 ? -errno : 0;
}

int p2p_gpu_count(void)
{
	return p2p_dev_count(P2P_GPU_DRIVER);
}

int p2p_gpu_open(struct p2p_gpu *gpu, int id)
{
	gpu->id = id;
	gpu->fd = p2p_dev_open(P2P_GPU_DRIVER, id);
	return gpu->fd < 0 ? gpu->fd : 0;
}

void p2p_gpu_close(struct p2p_gpu *gpu)
{
	if (gpu->fd >= 0)
		close(gpu->fd);
	gpu->fd = -1;
}

int p2p_gpu_info(const struct p2p_gpu *gpu, struct p2ptest_gpu_info *info)
{
	return dev_ioctl(gpu->fd, P2PTEST_GPU_INFO, info);
}

static long gpu_migrate(const struct p2p_gpu *gpu, void *addr, size_t len,
			__u32 dir)
{
	struct p2ptest_gpu_migrate arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.dir = dir,
	};
	int ret = dev_ioctl(gpu->fd, P2PTEST_GPU_MIGRATE, &arg);

	return ret ? ret : (long)arg.pages;
}

long p2p_gpu_to_vram(const struct p2p_gpu *gpu, void *addr, size_t len)
{
	return gpu_migrate(gpu, addr, len, P2PTEST_GPU_TO_VRAM);
}

long p2p_gpu_to_host(const struct p2p_gpu *gpu, void *addr, size_t len)
{
	return gpu_migrate(gpu, addr, len, P2PTEST_GPU_TO_HOST);
}

static long gpu_access(const struct p2p_gpu *gpu, uintptr_t addr, uintptr_t buf,
		       size_t len, __u32 flags)
{
	struct p2ptest_gpu_access arg = {
		.addr = addr,
		.len = len,
		.buf = buf,
		.flags = flags,
	};
	int ret = dev_ioctl(gpu->fd, P2PTEST_GPU_ACCESS, &arg);

	return ret ? ret : (long)arg.vram_pages;
}

long p2p_gpu_read(const struct p2p_gpu *gpu, const void *addr, void *buf,
		  size_t len)
{
	return gpu_access(gpu, (uintptr_t)addr, (uintptr_t)buf, len, 0);
}

long p2p_gpu_write(const struct p2p_gpu *gpu, void *addr, const void *buf,
		   size_t len)
{
	return gpu_access(gpu, (uintptr_t)addr, (uintptr_t)buf, len,
			  P2PTEST_GPU_ACCESS_WRITE);
}

int p2p_gpu_lookup(const struct p2p_gpu *gpu, const void *addr, size_t len,
		   __u64 *locs)
{
	struct p2ptest_gpu_lookup arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.locs = (uintptr_t)locs,
	};

	return dev_ioctl(gpu->fd, P2PTEST_GPU_LOOKUP, &arg);
}

long p2p_gpu_resident(const struct p2p_gpu *gpu, const void *addr, size_t len)
{
	size_t pages = len / P2P_PAGE;
	__u64 *locs = calloc(pages, sizeof(*locs));
	long n = 0;
	size_t i;
	int ret;

	if (!locs)
		return -ENOMEM;
	ret = p2p_gpu_lookup(gpu, addr, len, locs);
	for (i = 0; !ret && i < pages; i++)
		n += p2p_loc_is_vram(locs[i]);
	free(locs);
	return ret ? ret : n;
}

int p2p_gpu_window(const struct p2p_gpu *gpu, __u64 start, __u64 size)
{
	struct p2ptest_gpu_window arg = { .start = start, .size = size };

	return dev_ioctl(gpu->fd, P2PTEST_GPU_WINDOW, &arg);
}

int p2p_gpu_inject(const struct p2p_gpu *gpu, bool bad)
{
	__u32 arg = bad;

	return dev_ioctl(gpu->fd, P2PTEST_GPU_INJECT_BAD_ALIAS, &arg);
}

int p2p_gpu_wait_used(const struct p2p_gpu *gpu, __u64 pages)
{
	struct p2ptest_gpu_info info;
	int i, ret;

	for (i = 0; i < WAIT_STEPS; i++) {
		ret = p2p_gpu_info(gpu, &info);
		if (ret)
			return ret;
		if (info.pages_used == pages)
			return 0;
		p2p_sleep_ms(WAIT_STEP_MS);
	}
	return -ETIMEDOUT;
}

const unsigned char *p2p_vram_map(int id, size_t *len)
{
	char name[P2P_PCI_NAME];
	char path[96];
	struct stat st;
	void *p;
	int fd;

	if (p2p_pci_name(P2P_GPU_DRIVER, id, name))
		return NULL;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource2", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) || !st.st_size) {
		close(fd);
		return NULL;
	}
	p = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return NULL;
	*len = st.st_size;
	return p;
}

int p2p_nic_count(void)
{
	return p2p_dev_count(P2P_NIC_DRIVER);
}

int p2p_nic_open(struct p2p_nic *nic, int id)
{
	nic->id = id;
	nic->fd = p2p_dev_open(P2P_NIC_DRIVER, id);
	return nic->fd < 0 ? nic->fd : 0;
}

void p2p_nic_close(struct p2p_nic *nic)
{
	if (nic->fd >= 0)
		close(nic->fd);
	nic->fd = -1;
}

int p2p_nic_reg(const struct p2p_nic *nic, const void *addr, size_t len,
		__u32 flags, __u32 *handle)
{
	struct p2ptest_nic_reg arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.flags = flags,
	};
	int ret = dev_ioctl(nic->fd, P2PTEST_NIC_REG, &arg);

	if (!ret)
		*handle = arg.handle;
	return ret;
}

int p2p_nic_dereg(const struct p2p_nic *nic, __u32 handle)
{
	struct p2ptest_nic_dereg arg = { .handle = handle };

	return dev_ioctl(nic->fd, P2PTEST_NIC_DEREG, &arg);
}

static int nic_xfer(const struct p2p_nic *nic, struct p2ptest_nic_xfer *arg,
		    struct p2ptest_nic_xfer *out)
{
	int ret = dev_ioctl(nic->fd, P2PTEST_NIC_XFER, arg);

	if (out)
		*out = *arg;
	/* A transfer that succeeds in part must say that it failed */
	return !ret && arg->done != arg->len ? -EIO : ret;
}

int p2p_nic_read(const struct p2p_nic *nic, __u32 handle, const void *addr,
		 void *buf, size_t len, struct p2ptest_nic_xfer *xfer)
{
	struct p2ptest_nic_xfer arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.buf = (uintptr_t)buf,
		.handle = handle,
	};

	return nic_xfer(nic, &arg, xfer);
}

int p2p_nic_write(const struct p2p_nic *nic, __u32 handle, void *addr,
		  const void *buf, size_t len, struct p2ptest_nic_xfer *xfer)
{
	struct p2ptest_nic_xfer arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.buf = (uintptr_t)buf,
		.handle = handle,
		.flags = P2PTEST_NIC_XFER_WRITE,
	};

	return nic_xfer(nic, &arg, xfer);
}

int p2p_nic_query(const struct p2p_nic *nic, __u32 handle, const void *addr,
		  size_t len, struct p2ptest_nic_page *pages)
{
	struct p2ptest_nic_query arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.pages = (uintptr_t)pages,
		.handle = handle,
	};

	return dev_ioctl(nic->fd, P2PTEST_NIC_QUERY, &arg);
}

/* Count, and refuse what cannot be */
static int view_pages(const struct p2ptest_nic_page *pages, size_t n,
		      struct p2p_view *view)
{
	size_t i;

	memset(view, 0, sizeof(*view));
	for (i = 0; i < n; i++) {
		if (pages[i].kind > P2PTEST_PAGE_HOST_BRIDGE ||
		    pages[i].reason >= P2PTEST_REASON_MAX ||
		    pages[i].writable > 1 || pages[i].pad)
			return -EBADMSG;
		view->kind[pages[i].kind]++;
		view->reason[pages[i].reason]++;
		view->writable += pages[i].writable;
		view->peer += p2p_kind_is_peer(pages[i].kind);
	}
	return 0;
}

int p2p_nic_view(const struct p2p_nic *nic, __u32 handle, const void *addr,
		 size_t len, struct p2p_view *view)
{
	uintptr_t first = (uintptr_t)addr & ~(P2P_PAGE - 1);
	size_t n = ((uintptr_t)addr + len - first + P2P_PAGE - 1) / P2P_PAGE;
	struct p2ptest_nic_page *pages = malloc(n * sizeof(*pages));
	int ret;

	if (!pages)
		return -ENOMEM;
	/* So that entries the driver forgets are not taken for answers */
	memset(pages, 0xff, n * sizeof(*pages));
	ret = p2p_nic_query(nic, handle, addr, len, pages);
	if (!ret)
		ret = view_pages(pages, n, view);
	free(pages);
	return ret;
}

/* The NIC as a card without page faults */

int p2p_nic_pin(const struct p2p_nic *nic, const void *addr, size_t len,
		__u32 flags, __u32 *handle)
{
	struct p2ptest_nic_pin arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.flags = flags,
	};
	int ret = dev_ioctl(nic->fd, P2PTEST_NIC_PIN, &arg);

	*handle = arg.handle;
	return ret;
}

int p2p_nic_unpin(const struct p2p_nic *nic, __u32 handle)
{
	struct p2ptest_nic_unpin arg = { .handle = handle };

	return dev_ioctl(nic->fd, P2PTEST_NIC_UNPIN, &arg);
}

int p2p_nic_copy(const struct p2p_nic *nic, struct p2ptest_nic_copy *copy)
{
	return dev_ioctl(nic->fd, P2PTEST_NIC_COPY, copy);
}

int p2p_nic_pinned(const struct p2p_nic *nic, __u32 handle,
		   struct p2ptest_nic_pinned *pinned, struct p2p_view *view)
{
	struct p2ptest_nic_page *pages;
	int ret;

	*pinned = (struct p2ptest_nic_pinned){ .handle = handle };
	ret = dev_ioctl(nic->fd, P2PTEST_NIC_PINNED, pinned);
	if (ret || !view)
		return ret;
	pages = malloc(pinned->nr * sizeof(*pages));
	if (!pages)
		return -ENOMEM;
	memset(pages, 0xff, pinned->nr * sizeof(*pages));
	pinned->pages = (uintptr_t)pages;
	ret = dev_ioctl(nic->fd, P2PTEST_NIC_PINNED, pinned);
	if (!ret)
		ret = view_pages(pages, pinned->nr, view);
	free(pages);
	return ret;
}

/* Expectation */

int p2p_expect(int gpu)
{
	static const struct {
		const char *word;
		enum p2p_expect expect;
	} words[] = {
		{ "none", P2P_EXPECT_NONE },
		{ "topology", P2P_EXPECT_TOPOLOGY },
		{ "bus_addr", P2P_EXPECT_BUS_ADDR },
		{ "host_bridge", P2P_EXPECT_HOST_BRIDGE },
	};
	const char *p = getenv("P2PTEST_EXPECT");
	size_t i, len;

	if (!p || !*p)
		return P2P_EXPECT_UNKNOWN;
	for (; gpu > 0 && strchr(p, ','); gpu--)
		p = strchr(p, ',') + 1;
	len = strcspn(p, ",");
	for (i = 0; i < ARRAY_SIZE(words); i++) {
		if (strlen(words[i].word) == len &&
		    !strncmp(p, words[i].word, len))
			return words[i].expect;
	}
	return -EINVAL;
}
