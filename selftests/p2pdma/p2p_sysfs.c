// SPDX-License-Identifier: GPL-2.0
/*
 * The part of p2ptest.h that is about files of the kernel: counters, policy,
 * tracepoint, PCI devices and modules
 */
#define _GNU_SOURCE
#include "p2ptest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/pci_regs.h>

#define STATS_DIR	"/sys/kernel/mm/hmm/p2p_stats"
#define POLICY_FILE	"/sys/kernel/mm/hmm/p2p"
#define TRACEFS		"/sys/kernel/tracing"
#define PCI_DRIVERS	"/sys/bus/pci/drivers"
#define PCI_DEVICES	"/sys/bus/pci/devices"
#define FAIL_DIR	"/sys/kernel/debug/fail_hmm_dma_map"

/* Devices of one driver: 64 render nodes, and a host with many functions of a NIC */
#define MAX_PCI_NAMES	256

/* Polls, each after a sleep, until something that must come is late */
#define WAIT_STEP_MS	20
#define WAIT_STEPS	3000

const char *const p2p_reason_names[P2PTEST_REASON_MAX] = {
	[P2PTEST_REASON_NONE]		= "none",
	[P2PTEST_REASON_BUS_ADDR]	= "bus_addr",
	[P2PTEST_REASON_HOST_BRIDGE]	= "host_bridge",
	[P2PTEST_REASON_NO_OP]		= "no_op",
	[P2PTEST_REASON_NO_ALIAS]	= "no_alias",
	[P2PTEST_REASON_UNREGISTERED]	= "unregistered",
	[P2PTEST_REASON_TOPOLOGY]	= "topology",
	[P2PTEST_REASON_POLICY]		= "policy",
	[P2PTEST_REASON_READ_ONLY]	= "read_only",
	[P2PTEST_REASON_MAP_FAILED]	= "map_failed",
};

int p2p_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;
	int ret = 0;

	if (fd < 0)
		return -errno;
	n = write(fd, text, strlen(text));
	if (n < 0)
		ret = -errno;
	else if ((size_t)n != strlen(text))
		ret = -EIO;
	close(fd);
	return ret;
}

static int read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, text, size - 1);
	close(fd);
	if (n < 0)
		return -errno;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return 0;
}

/* Counters and policy */

int p2p_stats_read(struct p2p_stats *stats)
{
	char path[96], text[32], *end;
	int i, ret;

	stats->pages[P2PTEST_REASON_NONE] = 0;
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
		snprintf(path, sizeof(path), STATS_DIR "/%s",
			 p2p_reason_names[i]);
		ret = read_file(path, text, sizeof(text));
		if (ret)
			return ret;
		stats->pages[i] = strtoull(text, &end, 10);
		if (end == text || *end)
			return -EBADMSG;
	}
	return 0;
}

int p2p_stats_since(struct p2p_stats *from)
{
	struct p2p_stats now;
	int i, ret = p2p_stats_read(&now);

	for (i = 0; !ret && i < P2PTEST_REASON_MAX; i++)
		from->pages[i] = now.pages[i] - from->pages[i];
	return ret;
}

int p2p_policy_get(char *word, size_t size)
{
	char text[64];
	char *open, *close;
	int ret = read_file(POLICY_FILE, text, sizeof(text));

	if (ret)
		return ret;
	open = strchr(text, '[');
	close = open ? strchr(open, ']') : NULL;
	if (!close)
		return -EBADMSG;
	*close = '\0';
	snprintf(word, size, "%s", open + 1);
	return 0;
}

int p2p_policy_set(const char *word)
{
	char before[16];
	int ret = p2p_policy_get(before, sizeof(before));

	ret = ret ?: p2p_put_back_by(POLICY_FILE, before);
	return ret ?: p2p_write(POLICY_FILE, word);
}

/* Settings */

#define MAX_SETTINGS	32

/* Shared, because tests are processes of their own, which may be killed */
static struct settings {
	int n;
	struct setting {
		bool known;
		char path[P2P_PATH];
		char value[P2P_VALUE];
	} of[MAX_SETTINGS];
} *settings;

/* Before the constructors of tests, which may already ask the kernel */
static void __attribute__((constructor(101))) settings_share(void)
{
	settings = mmap(NULL, sizeof(*settings), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (settings == MAP_FAILED)
		abort();
}

static bool is_known(const char *path)
{
	int i;

	for (i = 0; i < settings->n && i < MAX_SETTINGS; i++)
		if (settings->of[i].known && !strcmp(settings->of[i].path, path))
			return true;
	return false;
}

/*
 * Threads and processes of a test may change the same setting at once. Then it is
 * there twice, and the first one, which is put back last, has the value from before.
 */
int p2p_put_back_by(const char *path, const char *text)
{
	struct setting *setting;
	int i;

	if (is_known(path))
		return 0;
	if (strlen(path) >= P2P_PATH || strlen(text) >= P2P_VALUE)
		return -ENAMETOOLONG;
	i = __atomic_fetch_add(&settings->n, 1, __ATOMIC_RELAXED);
	if (i >= MAX_SETTINGS)
		return -ENOSPC;
	setting = &settings->of[i];
	strcpy(setting->path, path);
	strcpy(setting->value, text);
	__atomic_store_n(&setting->known, true, __ATOMIC_RELEASE);
	return 0;
}

int p2p_change(const char *path, const char *text)
{
	char before[P2P_VALUE];
	int ret = is_known(path) ? 0 : read_file(path, before, sizeof(before));

	if (!ret && !is_known(path))
		ret = p2p_put_back_by(path, before);
	return ret ?: p2p_write(path, text);
}

/* Also in the handler of a signal */
void p2p_put_back(void)
{
	int i = settings->n < MAX_SETTINGS ? settings->n : MAX_SETTINGS;

	while (i--) {
		struct setting *setting = &settings->of[i];

		if (setting->known)
			p2p_write(setting->path, setting->value);
		setting->known = false;
	}
	settings->n = 0;
}

static int fail_write(const char *name, const char *text)
{
	char path[96];

	snprintf(path, sizeof(path), FAIL_DIR "/%s", name);
	return p2p_change(path, text);
}

static int fail_set(const char *name, __u64 value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", value);
	return fail_write(name, text);
}

bool p2p_maps_can_fail(void)
{
	return !access(FAIL_DIR, F_OK);
}

int p2p_maps_fail(__u64 first_pfn, __u64 last_pfn)
{
	int ret = fail_set("first-pfn", first_pfn);

	if (!ret)
		ret = fail_set("last-pfn", last_pfn);
	if (!ret)
		ret = fail_set("verbose", 0);
	if (!ret)
		ret = fail_write("times", "-1");
	return ret ?: fail_set("probability", 100);
}

int p2p_gpu_bar(const struct p2p_gpu *gpu, __u64 *start, __u64 *end)
{
	char name[P2P_PCI_NAME];
	int ret = p2p_pci_name(P2P_GPU_DRIVER, gpu->id, name);

	return ret ?: p2p_pci_bar(name, 2, start, end);
}

int p2p_map_fails(const struct p2p_gpu *gpu, const void *page)
{
	__u64 loc, start, end, pfn;
	int ret = p2p_gpu_bar(gpu, &start, &end);

	ret = ret ?: p2p_gpu_lookup(gpu, page, P2P_PAGE, &loc);
	if (!ret && !p2p_loc_is_vram(loc))
		ret = -ENOENT;
	if (ret)
		return ret;
	pfn = (start + p2p_loc_offset(loc)) / P2P_PAGE;
	return p2p_maps_fail(pfn, pfn);
}

int p2p_aliases_fail(const struct p2p_gpu *gpu)
{
	__u64 start, end;
	int ret = p2p_gpu_bar(gpu, &start, &end);

	return ret ?: p2p_maps_fail(start / P2P_PAGE, end / P2P_PAGE - 1);
}

int p2p_maps_work(void)
{
	return p2p_maps_can_fail() ? fail_set("probability", 0) : 0;
}

/* Tracepoint */

int p2p_trace_start(struct p2p_trace *trace)
{
	char path[160];
	int ret;

	if (access(TRACEFS "/instances", F_OK) &&
	    mount("tracefs", TRACEFS, "tracefs", 0, NULL))
		return -errno;
	snprintf(trace->dir, sizeof(trace->dir), TRACEFS "/instances/p2ptest.%d",
		 getpid());
	if (mkdir(trace->dir, 0700) && errno != EEXIST)
		return -errno;
	snprintf(path, sizeof(path), "%s/trace", trace->dir);
	truncate(path, 0);
	snprintf(path, sizeof(path), "%s/events/hmm/hmm_p2p/enable",
		 trace->dir);
	ret = p2p_write(path, "1");
	if (ret)
		rmdir(trace->dir);
	return ret;
}

/* Find "name=" at the start of a field; the value, or NULL */
static const char *trace_field(const char *line, const char *name)
{
	size_t n = strlen(name);
	const char *p = line;

	while ((p = strstr(p, name))) {
		if (p > line && strchr(" ,", p[-1]) && p[n] == '=')
			return p + n + 1;
		p += n;
	}
	return NULL;
}

static bool trace_is_of(const char *f_dev, const char *dev)
{
	size_t n = strlen(dev);

	return !strncmp(f_dev, dev, n) && f_dev[n] == ' ';
}

static int trace_line(const char *line, const char *dev, uintptr_t start,
		      uintptr_t end, __u64 pages[P2PTEST_REASON_MAX])
{
	const char *f_dev = trace_field(line, "dev");
	const char *f_addr = trace_field(line, "addr");
	const char *f_pages = trace_field(line, "npages");
	const char *f_result = trace_field(line, "result");
	__u64 addr, last, npages;
	size_t len;
	int i;

	if (!f_dev || !f_addr || !f_pages || !f_result)
		return -EBADMSG;
	if (dev && !trace_is_of(f_dev, dev))
		return 0;
	addr = strtoull(f_addr, NULL, 16);
	npages = strtoull(f_pages, NULL, 0);
	if (!npages)
		return -EBADMSG;
	last = addr + npages * P2P_PAGE;
	/* A failed mapping is traced without a user address */
	if (!addr) {
		start = 0;
		end = last;
	}
	if (addr >= end || last <= start)
		return 0;
	if (addr < start)
		addr = start;
	if (last > end)
		last = end;

	len = strcspn(f_result, " ,\n");
	for (i = 0; i < P2PTEST_REASON_MAX; i++) {
		if (strlen(p2p_reason_names[i]) == len &&
		    !strncmp(f_result, p2p_reason_names[i], len)) {
			pages[i] += (last - addr) / P2P_PAGE;
			return 0;
		}
	}
	return -EBADMSG;
}

static FILE *trace_open(const struct p2p_trace *trace)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/trace", trace->dir);
	return fopen(path, "re");
}

/* The fields of the next event, which are in @line, or NULL */
static const char *trace_next(FILE *f, char *line, int size)
{
	const char *event;

	while (fgets(line, size, f)) {
		event = strstr(line, " hmm_p2p: ");
		if (line[0] != '#' && event)
			return event + strlen(" hmm_p2p:");
	}
	return NULL;
}

int p2p_trace_count(const struct p2p_trace *trace, const char *dev,
		    const void *addr, size_t len,
		    __u64 pages[P2PTEST_REASON_MAX])
{
	uintptr_t start = (uintptr_t)addr & ~(P2P_PAGE - 1);
	uintptr_t end = ((uintptr_t)addr + len + P2P_PAGE - 1) & ~(P2P_PAGE - 1);
	const char *event;
	char line[512];
	int ret = 0;
	FILE *f;

	memset(pages, 0, P2PTEST_REASON_MAX * sizeof(*pages));
	f = trace_open(trace);
	if (!f)
		return -errno;
	while (!ret && (event = trace_next(f, line, sizeof(line))))
		ret = trace_line(event, dev, start, end, pages);
	fclose(f);
	return ret;
}

int p2p_trace_phys(const struct p2p_trace *trace, const char *dev,
		   const void *addr, __u64 *phys)
{
	const char *event, *f_dev, *f_addr, *f_phys, *f_pages;
	__u64 first, page = (uintptr_t)addr / P2P_PAGE;
	int ret = -ENOENT;
	char line[512];
	FILE *f;

	f = trace_open(trace);
	if (!f)
		return -errno;
	while ((event = trace_next(f, line, sizeof(line)))) {
		f_dev = trace_field(event, "dev");
		f_addr = trace_field(event, "addr");
		f_phys = trace_field(event, "phys");
		f_pages = trace_field(event, "npages");
		if (!f_dev || !f_addr || !f_phys || !f_pages) {
			ret = -EBADMSG;
			break;
		}
		first = strtoull(f_addr, NULL, 16) / P2P_PAGE;
		if (!trace_is_of(f_dev, dev) || page < first ||
		    page - first >= strtoull(f_pages, NULL, 0))
			continue;
		*phys = strtoull(f_phys, NULL, 16) + (page - first) * P2P_PAGE;
		ret = 0;
	}
	fclose(f);
	return ret;
}

void p2p_trace_stop(const struct p2p_trace *trace)
{
	rmdir(trace->dir);
}

/* PCI */

static int cmp_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

/*
 * The device node has no link to the PCI device. Drivers number their devices
 * in the order of probing, which is the order of PCI addresses. A device that
 * is bound again takes the number that its absence left free.
 */
int p2p_pci_name(const char *driver, int id, char name[P2P_PCI_NAME])
{
	char names[MAX_PCI_NAMES][P2P_PCI_NAME];
	char path[96];
	struct dirent *d;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), PCI_DRIVERS "/%s", driver);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while ((d = readdir(dir)) && n < MAX_PCI_NAMES) {
		if (strlen(d->d_name) == strlen("0000:00:00.0") &&
		    d->d_name[4] == ':')
			memcpy(names[n++], d->d_name,
			       strlen("0000:00:00.0") + 1);
	}
	closedir(dir);
	if (id >= n)
		return -ENODEV;
	qsort(names, n, P2P_PCI_NAME, cmp_name);
	memcpy(name, names[id], P2P_PCI_NAME);
	return 0;
}

int p2p_pci_name_of(const char *folder, char name[P2P_PCI_NAME])
{
	char device[PATH_MAX];
	const char *base;

	if (!realpath(folder, device))
		return -errno;
	base = strrchr(device, '/') + 1;
	if (strlen(base) != strlen("0000:00:00.0"))
		return -ENODEV;
	memcpy(name, base, strlen(base) + 1);
	return 0;
}

int p2p_pci_unbind(const char *driver, const char *name)
{
	char path[96];

	snprintf(path, sizeof(path), PCI_DRIVERS "/%s/unbind", driver);
	return p2p_write(path, name);
}

static int wait_node(const char *driver, int id)
{
	char path[64];
	int i;

	snprintf(path, sizeof(path), "/dev/%s%d", driver, id);
	for (i = 0; i < WAIT_STEPS; i++) {
		if (!access(path, R_OK | W_OK))
			return 0;
		p2p_sleep_ms(WAIT_STEP_MS);
	}
	return -ETIMEDOUT;
}

int p2p_pci_bind(const char *driver, const char *name, int id)
{
	char path[96];
	int ret;

	snprintf(path, sizeof(path), PCI_DRIVERS "/%s/bind", driver);
	ret = p2p_write(path, name);
	return ret || id < 0 ? ret : wait_node(driver, id);
}

int p2p_pci_rescan(void)
{
	return p2p_write("/sys/bus/pci/rescan", "1");
}

int p2p_pci_attr_set(const char *name, const char *attr, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", name, attr);
	return p2p_write(path, text);
}

int p2p_pci_attr_get(const char *name, const char *attr, char *text,
		     size_t size)
{
	char path[128];
	int ret;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", name, attr);
	ret = read_file(path, text, size);
	if (!ret)
		text[strcspn(text, "\n")] = '\0';
	return ret;
}

int p2p_pci_command(const char *name, unsigned char clear, unsigned char set)
{
	unsigned char value;
	char path[128];
	int fd, ret;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/config", name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = pread(fd, &value, 1, PCI_COMMAND) == 1 ? 0 : -EIO;
	if (!ret && (clear || set)) {
		value = (value & ~clear) | set;
		ret = pwrite(fd, &value, 1, PCI_COMMAND) == 1 ? 0 : -EIO;
	}
	close(fd);
	return ret ?: value;
}

/* Clear and set bits of Slot Control, if the slot has a power controller */
static int slot_control(const char *port, __u16 clear, __u16 set)
{
	unsigned char config[256];
	char path[128];
	__u32 slot_cap;
	__u16 control;
	int fd, ret;
	size_t cap;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/config", port);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = pread(fd, config, sizeof(config), 0) == sizeof(config) ? 0 : -EIO;
	if (ret)
		goto close;
	cap = config[PCI_CAPABILITY_LIST];
	while (cap && config[cap] != PCI_CAP_ID_EXP)
		cap = config[cap + PCI_CAP_LIST_NEXT];
	ret = -EOPNOTSUPP;
	if (!cap || cap + PCI_EXP_SLTSTA > sizeof(config))
		goto close;
	memcpy(&slot_cap, config + cap + PCI_EXP_SLTCAP, sizeof(slot_cap));
	if (!(slot_cap & PCI_EXP_SLTCAP_PCP))
		goto close;
	ret = 0;
	if (!clear && !set)
		goto close;
	memcpy(&control, config + cap + PCI_EXP_SLTCTL, sizeof(control));
	control = (control & ~clear) | set;
	if (pwrite(fd, &control, sizeof(control), cap + PCI_EXP_SLTCTL) !=
	    sizeof(control))
		ret = -EIO;
close:
	close(fd);
	return ret;
}

bool p2p_pci_hotplug(void)
{
	return !access("/sys/bus/pci_express/drivers/pciehp", F_OK);
}

int p2p_pci_slot(const char *name, char port[P2P_PCI_NAME])
{
	char path[128];
	int ret;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/..", name);
	ret = p2p_pci_name_of(path, port);
	if (ret)
		return ret == -ENODEV ? -EOPNOTSUPP : ret;
	return slot_control(port, 0, 0);
}

int p2p_pci_slot_power(const char *port, bool on)
{
	/* QEMU deletes a device if power and the slot's light are off */
	return slot_control(port, PCI_EXP_SLTCTL_PIC | PCI_EXP_SLTCTL_PCC,
			    PCI_EXP_SLTCTL_PWR_IND_ON |
			    (on ? PCI_EXP_SLTCTL_PWR_ON : PCI_EXP_SLTCTL_PWR_OFF));
}

int p2p_pci_slot_pull(const char *port)
{
	return slot_control(port, PCI_EXP_SLTCTL_PIC | PCI_EXP_SLTCTL_PCC,
			    PCI_EXP_SLTCTL_PWR_IND_OFF | PCI_EXP_SLTCTL_PWR_OFF);
}

void p2p_outside(const char *op, const char *device, const char *error, char *answer,
		 size_t size)
{
	int fd = open(getenv("P2PTEST_HOTPLUG"), O_RDWR | O_CLOEXEC);
	size_t n = 0;

	answer[0] = '\0';
	if (fd < 0)
		return;
	dprintf(fd, "{\"op\":\"%s\",\"device\":\"%s\"", op, device);
	if (error)
		dprintf(fd, ",\"error\":\"%s\"", error);
	dprintf(fd, "}\n");
	while (n < size - 1 && read(fd, answer + n, 1) == 1 && answer[n] != '\n')
		n++;
	answer[n] = '\0';
	close(fd);
}

int p2p_pci_bar(const char *name, int bar, __u64 *start, __u64 *end)
{
	char path[96], line[128];
	int ret = -ENXIO;
	FILE *f;
	int i;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/resource", name);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	for (i = 0; fgets(line, sizeof(line), f); i++) {
		if (i == bar &&
		    sscanf(line, "%llx %llx", start, end) == 2 &&
		    *end) {
			*end += 1;
			ret = 0;
		}
	}
	fclose(f);
	return ret;
}

bool p2p_pci_translated(const char *name)
{
	char path[96], type[32];

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/iommu_group/type", name);
	return !read_file(path, type, sizeof(type)) &&
	       !strncmp(type, "DMA", strlen("DMA"));
}

int p2p_ram_end(__u64 *end)
{
	__u64 start, last;
	char line[256];
	FILE *f = fopen("/proc/iomem", "re");

	if (!f)
		return -errno;
	*end = 0;
	while (fgets(line, sizeof(line), f)) {
		if (strstr(line, ": System RAM") &&
		    sscanf(line, "%llx-%llx", &start, &last) == 2 &&
		    last >= *end)
			*end = last + 1;
	}
	fclose(f);
	/* Who may not see addresses sees zeros */
	return *end > 1 ? 0 : -EACCES;
}

long p2p_number_in(const char *path, const char *name)
{
	FILE *f = fopen(path, "re");
	long sum = -ENOENT;
	char line[256];
	size_t at;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, name, strlen(name)))
			continue;
		/* Behind the name, or a number and nothing else */
		at = strcspn(line, " \t");
		sum = (sum < 0 ? 0 : sum) +
		      strtol(line[at] ? line + at : line, NULL, 10);
	}
	fclose(f);
	return sum;
}

/* Modules */

ssize_t p2p_module_map(const char *name, void **image)
{
	const char *dir = getenv("P2PTEST_MODDIR");
	char path[PATH_MAX];
	ssize_t len;
	int fd;

	if (!dir)
		return -ENOENT;
	snprintf(path, sizeof(path), "%s/%s.ko", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	len = lseek(fd, 0, SEEK_END);
	*image = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (*image == MAP_FAILED)
		len = -errno;
	close(fd);
	return len;
}

int p2p_module_init(const void *image, size_t len, const char *params)
{
	return syscall(SYS_init_module, image, len, params) ? -errno : 0;
}

int p2p_module_load(const char *name, const char *params)
{
	void *image;
	ssize_t len = p2p_module_map(name, &image);
	int ret;

	if (len < 0)
		return len;
	ret = p2p_module_init(image, len, params);
	munmap(image, len);
	return ret;
}

int p2p_module_unload(const char *name)
{
	return syscall(SYS_delete_module, name, O_NONBLOCK) ? -errno : 0;
}

int p2p_module_reload(const char *name, const char *params)
{
	int ret = p2p_module_unload(name);

	if (ret && ret != -ENOENT)
		return ret;
	return p2p_module_load(name, params);
}

int p2p_driver_reload(const char *name, const char *params)
{
	int ret = p2p_module_reload(name, params);

	return ret ? ret : wait_node(name, 0);
}
