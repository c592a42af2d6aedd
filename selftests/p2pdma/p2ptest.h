/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2ptest.h - what the peer-to-peer DMA tests share: the two test devices, the
 * kernel's counters, policy and tracepoint, and the data pattern
 *
 * It knows how to ask, not what the answer should be: expectations are in the
 * tests. Functions return 0 or a count if they succeed and a negative errno if
 * they fail, so that a test can compare with -EPERM and the like.
 *
 * Pattern: a stream of 64-bit little-endian words, word i of the stream of a
 * seed being splitmix64(seed + i), where
 *
 *	z = x + 0x9e3779b97f4a7c15
 *	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
 *	z = (z ^ z >> 27) * 0x94d049bb133111eb
 *	splitmix64(x) = z ^ z >> 31
 *
 * Page "index" of a seed is the stream's bytes from index * 4096 on: its word k
 * (0 to 511) is splitmix64(seed + index * 512 + k).
 */
#ifndef P2PTEST_H
#define P2PTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/p2ptest.h>

#define P2P_PAGE	4096UL
#define P2P_HUGE	(2UL << 20)
#define P2P_MAX_DEVS	4

#define P2P_GPU_DRIVER	"p2ptest_gpu"
#define P2P_NIC_DRIVER	"p2ptest_nic"

/* Device nodes of a driver: a file of one, or a negative errno; how many there are */
int p2p_dev_open(const char *driver, int id);
int p2p_dev_count(const char *driver);

/*
 * How this library opens files of devices, and talks to them: the C library's
 * functions, unless a test puts a fake device in their place
 */
struct p2p_sys {
	int (*open)(const char *path, int flags);
	int (*ioctl)(int fd, unsigned long cmd, void *arg);
};

extern struct p2p_sys p2p_sys;

int p2p_open(const char *path, int flags);
/* One that was interrupted is repeated, but not for ever */
int p2p_ioctl(int fd, unsigned long cmd, void *arg);

/* Pattern */

void p2p_fill(void *buf, __u64 seed, size_t pos, size_t len);
/* The first byte that differs from the pattern, or len if none does */
size_t p2p_compare(const void *buf, __u64 seed, size_t pos, size_t len);
/* The first byte that is not @byte, or len */
size_t p2p_compare_byte(const void *buf, unsigned char byte, size_t len);

/* Memory */

/* Anonymous memory, never huge; NULL if there is none */
void *p2p_alloc(size_t len);
/* As above, aligned to 2 MiB and as huge pages if the kernel has them */
void *p2p_alloc_huge(size_t len);
/* Bytes of the mapping that begins at @addr that a PMD entry maps */
long p2p_huge_bytes(const void *addr);
/*
 * How many pages of the range are device private: their entries look like swap
 * entries, so this process must have no others
 */
long p2p_device_private(const void *addr, size_t len);

/* Test GPU */

struct p2p_gpu {
	int id;
	int fd;
};

int p2p_gpu_count(void);
int p2p_gpu_open(struct p2p_gpu *gpu, int id);
void p2p_gpu_close(struct p2p_gpu *gpu);
int p2p_gpu_info(const struct p2p_gpu *gpu, struct p2ptest_gpu_info *info);
/* Both return the number of pages that moved */
long p2p_gpu_to_vram(const struct p2p_gpu *gpu, void *addr, size_t len);
long p2p_gpu_to_host(const struct p2p_gpu *gpu, void *addr, size_t len);
/* Both return the number of pages that were reached in VRAM */
long p2p_gpu_read(const struct p2p_gpu *gpu, const void *addr, void *buf,
		  size_t len);
long p2p_gpu_write(const struct p2p_gpu *gpu, void *addr, const void *buf,
		   size_t len);
int p2p_gpu_lookup(const struct p2p_gpu *gpu, const void *addr, size_t len,
		   __u64 *locs);
/* How many pages of the range are in VRAM, by lookup */
long p2p_gpu_resident(const struct p2p_gpu *gpu, const void *addr, size_t len);
int p2p_gpu_window(const struct p2p_gpu *gpu, __u64 start, __u64 size);
/* The BAR that peers reach VRAM by, as p2p_pci_bar() */
int p2p_gpu_bar(const struct p2p_gpu *gpu, __u64 *start, __u64 *end);
int p2p_gpu_inject(const struct p2p_gpu *gpu, bool bad);
/* Wait until pages_used is @pages again; -ETIMEDOUT after a minute */
int p2p_gpu_wait_used(const struct p2p_gpu *gpu, __u64 pages);
/*
 * VRAM as the CPU sees it, through the BAR's file in sysfs: what a device reads
 * and writes there by DMA, without the driver in between. NULL if the kernel
 * does not allow it.
 */
const unsigned char *p2p_vram_map(int id, size_t *len);

/* VRAM offset of a location that p2p_gpu_lookup() gave */
static inline bool p2p_loc_is_vram(__u64 loc)
{
	return loc < P2PTEST_LOC_OTHER;
}

static inline __u64 p2p_loc_offset(__u64 loc)
{
	return loc & ~P2PTEST_LOC_RDONLY;
}

/* Test NIC */

struct p2p_nic {
	int id;
	int fd;
};

int p2p_nic_count(void);
int p2p_nic_open(struct p2p_nic *nic, int id);
void p2p_nic_close(struct p2p_nic *nic);
int p2p_nic_reg(const struct p2p_nic *nic, const void *addr, size_t len,
		__u32 flags, __u32 *handle);
int p2p_nic_dereg(const struct p2p_nic *nic, __u32 handle);
/*
 * Memory to @buf, and @buf to memory, by DMA. @xfer, if not NULL, receives
 * what the driver reports, also after an error.
 */
int p2p_nic_read(const struct p2p_nic *nic, __u32 handle, const void *addr,
		 void *buf, size_t len, struct p2ptest_nic_xfer *xfer);
int p2p_nic_write(const struct p2p_nic *nic, __u32 handle, void *addr,
		  const void *buf, size_t len, struct p2ptest_nic_xfer *xfer);
int p2p_nic_query(const struct p2p_nic *nic, __u32 handle, const void *addr,
		  size_t len, struct p2ptest_nic_page *pages);

static inline bool p2p_kind_is_peer(unsigned int kind)
{
	return kind == P2PTEST_PAGE_BUS_ADDR ||
	       kind == P2PTEST_PAGE_HOST_BRIDGE;
}

/* How pages of a range are reached, counted */
struct p2p_view {
	unsigned long kind[P2PTEST_PAGE_HOST_BRIDGE + 1];
	unsigned long reason[P2PTEST_REASON_MAX];
	unsigned long writable;
	unsigned long peer;	/* of either kind */
};

int p2p_nic_view(const struct p2p_nic *nic, __u32 handle, const void *addr,
		 size_t len, struct p2p_view *view);

/* The NIC as a card without page faults, see struct p2ptest_nic_pin */
int p2p_nic_pin(const struct p2p_nic *nic, const void *addr, size_t len,
		__u32 flags, __u32 *handle);
int p2p_nic_unpin(const struct p2p_nic *nic, __u32 handle);
int p2p_nic_copy(const struct p2p_nic *nic, struct p2ptest_nic_copy *copy);
/* What the card knows; @view, if not NULL, of all pages */
int p2p_nic_pinned(const struct p2p_nic *nic, __u32 handle,
		   struct p2ptest_nic_pinned *pinned, struct p2p_view *view);

/* What the kernel offers to administrators: counters, policy, tracepoint */

/* Names by P2PTEST_REASON_*, as the counters and the tracepoint have them */
extern const char *const p2p_reason_names[P2PTEST_REASON_MAX];

struct p2p_stats {
	__u64 pages[P2PTEST_REASON_MAX];
};

int p2p_stats_read(struct p2p_stats *stats);
/* Change @from to what was counted since it was read */
int p2p_stats_since(struct p2p_stats *from);

int p2p_policy_get(char *word, size_t size);
int p2p_policy_set(const char *word);

/*
 * Settings of the machine. p2p_change() writes one, and p2p_put_back() what was there
 * before the first change. p2p_put_back_by() says what is to be written instead, for
 * a file that shows something else. Both are for paths of less than P2P_PATH bytes and
 * values of less than P2P_VALUE. p2p_harness.h puts all back before each test and at
 * the end.
 */
#define P2P_PATH	96
#define P2P_VALUE	128
int p2p_change(const char *path, const char *text);
int p2p_put_back_by(const char *path, const char *text);
void p2p_put_back(void);
/* Write a file of the kernel that is no setting */
int p2p_write(const char *path, const char *text);

/* Has the kernel CONFIG_FAIL_HMM_DMA_MAP? */
bool p2p_maps_can_fail(void);
/* Let each new DMA mapping of these page frames fail from now on */
int p2p_maps_fail(__u64 first_pfn, __u64 last_pfn);
/* The mapping of a page in VRAM, and the mappings of all pages there */
int p2p_map_fails(const struct p2p_gpu *gpu, const void *page);
int p2p_aliases_fail(const struct p2p_gpu *gpu);
int p2p_maps_work(void);

/* A tracing instance of its own: other users of tracing are not disturbed */
struct p2p_trace {
	char dir[96];
};

int p2p_trace_start(struct p2p_trace *trace);
/*
 * Count pages by result in the events of the PCI device @dev, or of all devices
 * if that is NULL, that touch the range since the start; 0, or -EBADMSG if an
 * event cannot be understood
 */
int p2p_trace_count(const struct p2p_trace *trace, const char *dev,
		    const void *addr, size_t len,
		    __u64 pages[P2PTEST_REASON_MAX]);
/*
 * The physical address of the page at @addr in the last event of device @dev that
 * touches it; -ENOENT if there is none
 */
int p2p_trace_phys(const struct p2p_trace *trace, const char *dev,
		   const void *addr, __u64 *phys);
void p2p_trace_stop(const struct p2p_trace *trace);

/* Devices and drivers */

#define P2P_PCI_NAME	16	/* "0000:03:00.0" */

/* PCI name of a device by driver and number */
int p2p_pci_name(const char *driver, int id, char name[P2P_PCI_NAME]);
/* PCI name of the device whose folder in sysfs this is, or a link to it */
int p2p_pci_name_of(const char *folder, char name[P2P_PCI_NAME]);
int p2p_pci_unbind(const char *driver, const char *name);
/* Bind, and wait until device node @id of the driver is there, if it is not < 0 */
int p2p_pci_bind(const char *driver, const char *name, int id);
/* Look for devices that were removed */
int p2p_pci_rescan(void);
/* An attribute of the device in sysfs; what is read is a line */
int p2p_pci_attr_set(const char *name, const char *attr, const char *text);
int p2p_pci_attr_get(const char *name, const char *attr, char *text,
		     size_t size);
#define P2P_PCI_MEMORY	2
#define P2P_PCI_MASTER	4

/* Change bits of the command register; its low byte as it is then */
int p2p_pci_command(const char *name, unsigned char clear, unsigned char set);
/* Does a driver of the kernel look after slots? It writes to the same register as we. */
bool p2p_pci_hotplug(void);
/* The port above a device, if it controls the power of its slot: -EOPNOTSUPP otherwise */
int p2p_pci_slot(const char *name, char port[P2P_PCI_NAME]);
/* Without power the device does not answer; it comes back as after a reset */
int p2p_pci_slot_power(const char *port, bool on);
/* Take the device out, and ask nobody. It is there again when somebody outside plugs it. */
int p2p_pci_slot_pull(const char *port);
/*
 * Ask whoever is at the other end of $P2PTEST_HOTPLUG to "unplug" or "plug" a device, or
 * for an "error" at the port above it. The answer is "ok", or why that cannot be. After
 * "unplug" the device has gone; after "plug" the kernel has yet to find it.
 */
void p2p_outside(const char *op, const char *device, const char *error, char *answer,
		 size_t size);
/* Start and end (exclusive) of a memory BAR */
int p2p_pci_bar(const char *name, int bar, __u64 *start, __u64 *end);
/* Does an IOMMU translate the device's addresses? */
bool p2p_pci_translated(const char *name);
/* First physical address above every byte of RAM */
int p2p_ram_end(__u64 *end);
/* Sum of the first numbers of the lines that begin with @name, "" for all lines */
long p2p_number_in(const char *path, const char *name);

/* Map the file, from directory $P2PTEST_MODDIR: its length; -ENOENT if that is not set */
ssize_t p2p_module_map(const char *name, void **image);
int p2p_module_init(const void *image, size_t len, const char *params);
/* Both */
int p2p_module_load(const char *name, const char *params);
int p2p_module_unload(const char *name);
/* Load with these parameters, in place of what is loaded if it is */
int p2p_module_reload(const char *name, const char *params);
/* The same for a driver, and wait until its first device node is there */
int p2p_driver_reload(const char *name, const char *params);

/* What the topology allows, as whoever started the guest knows it */
enum p2p_expect {
	P2P_EXPECT_UNKNOWN,	/* nobody said */
	P2P_EXPECT_NONE,	/* the kernel has no PCI_P2PDMA */
	P2P_EXPECT_TOPOLOGY,	/* no path */
	P2P_EXPECT_BUS_ADDR,	/* below a common switch */
	P2P_EXPECT_HOST_BRIDGE,	/* through the host bridge */
};

/*
 * From environment variable P2PTEST_EXPECT: none, topology, bus_addr or
 * host_bridge, or a list of these with commas, one for each GPU. The last one
 * goes for all further GPUs. -EINVAL if it is set to something else.
 */
int p2p_expect(int gpu);

/* Sleep; never spin, because emulated time may only pass when CPUs are idle */
void p2p_sleep_ms(unsigned int ms);
/* Since some moment in the past */
__u64 p2p_now_ms(void);

#endif /* P2PTEST_H */
