/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Test RDMA device: what its files share.
 *
 * edu.c has the registers and the DMA engine, mr.c memory regions and page
 * faults, file.c the calls of user space, main.c the PCI and RDMA device.
 */
#ifndef P2PTEST_RDMA_H
#define P2PTEST_RDMA_H

#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/types.h>
#include <linux/xarray.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_verbs.h>

#include <uapi/linux/p2ptest_rdma.h>

/* edu.c */

/* Bytes of the device's buffer */
#define EDU_BUFFER_SIZE	4096

/**
 * struct edu - the DMA engine
 * @pdev: PCI device
 * @regs: registers, in BAR 0
 * @page: memory by which bytes get in and out of the device's buffer
 * @page_dma: where the device finds @page
 * @lock: one transfer at a time. Its holder may rely on no DMA being in
 *	flight. It is taken in MMU notifiers: nobody may allocate memory or
 *	access user memory while it is held.
 * @max_transfer: how many bytes a transfer can copy
 * @failed: the device does not react any more
 */
struct edu {
	struct pci_dev *pdev;
	void __iomem *regs;
	void *page;
	dma_addr_t page_dma;
	struct mutex lock; /* one transfer at a time */
	size_t max_transfer;
	bool failed;
};

int edu_init(struct edu *edu, struct pci_dev *pdev, size_t max_transfer);
int edu_read(struct edu *edu, dma_addr_t addr, void *buf, size_t len);
int edu_write(struct edu *edu, dma_addr_t addr, const void *buf, size_t len);

/* main.c */

/**
 * struct p2ptest_rdma - a device
 * @ibdev: what the RDMA core knows; its reference count keeps all of this
 * @edu: DMA engine
 * @misc: the file in /dev
 * @name: its name
 * @id: its number
 * @unbind: held for reading by each call, for writing to unbind
 * @unbound: @edu is gone; protected by @unbind
 * @stopping: somebody waits for @unbind, so that calls should come to an end
 * @mrs: memory regions by handle
 */
struct p2ptest_rdma {
	struct ib_device ibdev;
	struct edu edu;
	struct miscdevice misc;
	char name[16];
	int id;
	struct rw_semaphore unbind;
	bool unbound;
	bool stopping;
	struct xarray mrs;
};

/* mr.c */

/*
 * An entry of the device's page table is the DMA address of a page with these,
 * or 0.
 */
#define MTT_PRESENT	BIT_ULL(0)
#define MTT_WRITE	BIT_ULL(1)

/**
 * struct rdma_part - a range of addresses that has a page table
 * @dev: the device
 * @odp: pages, if there is on-demand paging
 * @start: first address
 * @shift: of the size of a page of the page table
 * @nr: number of these pages
 * @mtt: the page table, @nr entries. Written under umem_mutex of @odp, and read
 *	under edu.lock.
 */
struct rdma_part {
	struct p2ptest_rdma *dev;
	struct ib_umem_odp *odp;
	unsigned long start;
	unsigned int shift;
	unsigned long nr;
	u64 *mtt;
};

/**
 * struct rdma_mr - a memory region
 * @kref: reference count
 * @dev: the device
 * @file: the file that it was registered with
 * @mm: the address space that it was registered in
 * @addr: first byte
 * @len: bytes
 * @flags: P2PTEST_RDMA_MR_*
 * @umem: pinned pages, if it is pinned
 * @root: what its parts have in common, if it is implicit
 * @part: page table of a region that is not implicit
 * @parts: parts by number, if it is implicit
 * @parts_lock: for adding to @parts
 */
struct rdma_mr {
	struct kref kref;
	struct p2ptest_rdma *dev;
	struct file *file;
	struct mm_struct *mm;
	unsigned long addr;
	unsigned long len;
	u32 flags;
	struct ib_umem *umem;
	struct ib_umem_odp *root;
	struct rdma_part part;
	struct xarray parts;
	struct mutex parts_lock; /* for adding to parts */
};

struct rdma_mr *rdma_mr_create(struct p2ptest_rdma *dev, struct file *file,
			       unsigned long addr, unsigned long len,
			       u32 flags);
void rdma_mr_put(struct rdma_mr *mr);
int rdma_mr_rereg(struct rdma_mr *mr, u32 flags);
struct rdma_part *rdma_mr_part(struct rdma_mr *mr, unsigned long addr,
			       bool create);
int rdma_mr_fault(struct rdma_mr *mr, unsigned long addr, unsigned long len,
		  bool write, bool fault);
int rdma_mr_copy(struct rdma_mr *mr, unsigned long addr, unsigned long end,
		 void *buf, size_t len, bool write, u32 *faults);
void rdma_part_describe(struct rdma_part *part, unsigned long addr,
			struct p2ptest_rdma_page *page);

/* Where @part ends. */
static inline unsigned long rdma_part_end(const struct rdma_part *part)
{
	return part->start + (part->nr << part->shift);
}

/* file.c */

extern const struct file_operations p2ptest_rdma_fops;
void p2ptest_rdma_end_mrs(struct p2ptest_rdma *dev, struct file *file);

#endif /* P2PTEST_RDMA_H */
