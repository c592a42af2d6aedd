// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions of the test RDMA device, and its page faults.
 *
 * The device has a page table (MTT) for each region, as an RDMA NIC does. DMA
 * looks an address up there and faults if there is none. Page faults go through
 * the RDMA core. As mlx5 does, they write the page table in blocks of eight,
 * with what the core knows of the neighbours. An invalidation takes the
 * addresses out of the page table, waits until DMA that may have looked them up
 * is complete, and tells the core.
 */
#include <linux/hmm.h>
#include <linux/hmm-dma.h>
#include <linux/mmu_notifier.h>
#include <linux/pci-p2pdma.h>
#include <linux/sched/mm.h>
#include <rdma/iter.h>

#include "rdma.h"

#define MTT_BLOCK	8

/* Pages to fault at a time. */
#define FAULT_BATCH	512UL

#define PART_SHIFT	26
#define PART_SIZE	BIT(PART_SHIFT)

#define MAX_LEN		SZ_1G
#define MAX_IMPLICIT	SZ_1T

static unsigned long part_index(const struct rdma_part *part,
				unsigned long addr)
{
	return (addr - part->start) >> part->shift;
}

/*
 * Take pages away from the device, and then from the core. A page goes as a
 * whole.
 */
static void part_zap(struct rdma_part *part, unsigned long start,
		     unsigned long end)
{
	unsigned long idx;
	bool used = false;

	lockdep_assert_held(&part->odp->umem_mutex);

	start = ALIGN_DOWN(max(part->start, start), BIT(part->shift));
	end = ALIGN(min(rdma_part_end(part), end), BIT(part->shift));
	for (idx = part_index(part, start); idx < part_index(part, end); idx++) {
		used |= part->mtt[idx];
		WRITE_ONCE(part->mtt[idx], 0);
	}

	/* Who looked an address up before holds this until the DMA is done. */
	if (used) {
		mutex_lock(&part->dev->edu.lock);
		mutex_unlock(&part->dev->edu.lock);
	}

	ib_umem_odp_unmap_dma_pages(part->odp, start, end);
}

static bool part_invalidate(struct mmu_interval_notifier *mni,
			    const struct mmu_notifier_range *range,
			    unsigned long cur_seq)
{
	struct ib_umem_odp *odp =
		container_of(mni, struct ib_umem_odp, notifier);

	if (!mmu_notifier_range_blockable(range))
		return false;

	mutex_lock(&odp->umem_mutex);
	mmu_interval_set_seq(mni, cur_seq);
	/* Without a page that is mapped, odp->private may not be set yet. */
	if (odp->npages)
		part_zap(odp->private, range->start, range->end);
	mutex_unlock(&odp->umem_mutex);
	return true;
}

static const struct mmu_interval_notifier_ops part_ops = {
	.invalidate = part_invalidate,
};

/*
 * Page fault of the device. On success umem_mutex is held, so that the pages
 * stay as long.
 */
static int part_fault_and_lock(struct rdma_part *part, unsigned long addr,
			       unsigned long len, bool write, bool fault)
{
	struct pci_p2pdma_map_state p2pdma_state = {};
	struct ib_umem_odp *odp = part->odp;
	struct device *dma_dev = odp->umem.ibdev->dma_device;
	unsigned long idx, end;
	dma_addr_t dma_addr;
	int np;

	np = ib_umem_odp_map_dma_and_lock(odp, addr, len,
					  write ? HMM_PFN_WRITE : 0, fault);
	if (np < 0)
		return np;

	idx = part_index(part, addr);
	end = min(ALIGN(idx + np, MTT_BLOCK), part->nr);
	for (idx = ALIGN_DOWN(idx, MTT_BLOCK); idx < end; idx++) {
		const unsigned long pfn = odp->map.pfn_list[idx];

		if (!(pfn & HMM_PFN_DMA_MAPPED))
			continue;

		dma_addr = hmm_dma_map_pfn(dma_dev, &odp->map, idx,
					   &p2pdma_state);
		if (dma_mapping_error(dma_dev, dma_addr)) {
			mutex_unlock(&odp->umem_mutex);
			return -EIO;
		}
		WRITE_ONCE(part->mtt[idx],
			   dma_addr | MTT_PRESENT |
				   (pfn & HMM_PFN_WRITE ? MTT_WRITE : 0));
	}
	return np;
}

/*
 * Can a page fault of some pages have failed because of one of them? That page
 * is not there, or not even host memory can be mapped for DMA (-EFAULT); it must
 * not be written (-EPERM); or it is not huge in a region that is (-EINVAL). Or
 * somebody changes the region all the time (-EBUSY): one page is faulted faster.
 * Other errors are not about a page, and fewer pages are no way out.
 */
static bool part_error_of_page(const struct rdma_part *part, int err)
{
	return err == -EFAULT || err == -EPERM || err == -EBUSY ||
	       (err == -EINVAL && part->shift > PAGE_SHIFT);
}

/* DMA, if the device has the address: otherwise -EAGAIN. */
static int part_dma(struct rdma_part *part, unsigned long addr, void *buf,
		    size_t len, bool write)
{
	const u64 need = MTT_PRESENT | (write ? MTT_WRITE : 0);
	struct edu *edu = &part->dev->edu;
	int ret = -EAGAIN;
	u64 mtt;

	mutex_lock(&edu->lock);
	mtt = READ_ONCE(part->mtt[part_index(part, addr)]);
	if ((mtt & need) == need) {
		/* The address of a huge page need not be aligned like it. */
		addr = (mtt & PAGE_MASK) + (addr & (BIT(part->shift) - 1));
		if (write)
			ret = edu_write(edu, addr, buf, len);
		else
			ret = edu_read(edu, addr, buf, len);
	}
	mutex_unlock(&edu->lock);
	return ret;
}

/*
 * DMA between @len bytes at @addr, which are in one page, and @buf. More will
 * follow, up to @end: what is faulted may be so much.
 */
int rdma_mr_copy(struct rdma_mr *mr, unsigned long addr, unsigned long end,
		 void *buf, size_t len, bool write, u32 *faults)
{
	struct rdma_part *part = rdma_mr_part(mr, addr, true);
	int ret;

	if (IS_ERR(part))
		return PTR_ERR(part);

	ret = part_dma(part, addr, buf, len, write);
	if (ret != -EAGAIN || !part->odp)
		return ret == -EAGAIN ? -EPERM : ret;

	/* No sum, which could be beyond the end of the address space. */
	end = addr + min3(end - addr, rdma_part_end(part) - addr,
			  (FAULT_BATCH << PAGE_SHIFT) - offset_in_page(addr));
	++*faults;
	ret = part_fault_and_lock(part, addr, end - addr, write, true);
	/* If it is not about this page, get as far as possible. */
	if (part_index(part, end - 1) > part_index(part, addr) &&
	    part_error_of_page(part, ret)) {
		++*faults;
		ret = part_fault_and_lock(part, addr, len, write, true);
	}
	if (ret < 0)
		return ret;

	/*
	 * Do not give the lock back before: somebody who invalidates the page
	 * all the time could prevent all progress.
	 */
	ret = part_dma(part, addr, buf, len, write);
	mutex_unlock(&part->odp->umem_mutex);
	return ret == -EAGAIN ? -EIO : ret;
}

int rdma_mr_fault(struct rdma_mr *mr, unsigned long addr, unsigned long len,
		  bool write, bool fault)
{
	const unsigned long end = addr + len;
	struct rdma_part *part;
	unsigned long next;
	int ret;

	for (; addr < end; addr = next) {
		part = rdma_mr_part(mr, addr, true);
		if (IS_ERR(part))
			return PTR_ERR(part);
		if (!part->odp)
			return -EOPNOTSUPP;
		if (signal_pending(current))
			return -ERESTARTSYS;

		next = min(end, rdma_part_end(part));
		ret = part_fault_and_lock(part, addr, next - addr, write,
					  fault);
		if (ret < 0)
			return ret;
		mutex_unlock(&part->odp->umem_mutex);
	}
	return 0;
}

/* Context: umem_mutex is held, if there is one. */
void rdma_part_describe(struct rdma_part *part, unsigned long addr,
			struct p2ptest_rdma_page *page)
{
	const unsigned long idx = part_index(part, addr);
	unsigned long pfn = HMM_PFN_VALID | HMM_PFN_DMA_MAPPED;
	const u64 mtt = part->mtt[idx];

	if (part->odp) {
		lockdep_assert_held(&part->odp->umem_mutex);
		pfn = part->odp->map.pfn_list[idx];
	}

	*page = (struct p2ptest_rdma_page){};
	if (pfn & HMM_PFN_VALID)
		page->flags |= P2PTEST_RDMA_PAGE_VALID;
	if (pfn & HMM_PFN_DMA_MAPPED)
		page->flags |= P2PTEST_RDMA_PAGE_MAPPED;
	if (mtt & MTT_PRESENT)
		page->flags |= P2PTEST_RDMA_PAGE_DEVICE;
	if (mtt & MTT_WRITE)
		page->flags |= P2PTEST_RDMA_PAGE_WRITABLE;

	if (!(pfn & HMM_PFN_DMA_MAPPED))
		page->kind = P2PTEST_PAGE_UNMAPPED;
	else if (pfn & HMM_PFN_P2PDMA_BUS)
		page->kind = P2PTEST_PAGE_BUS_ADDR;
	else if (pfn & HMM_PFN_P2PDMA)
		page->kind = P2PTEST_PAGE_HOST_BRIDGE;
	else
		page->kind = P2PTEST_PAGE_HOST;
}

/* The page table has to be there before a page is mapped. */
static int part_init(struct rdma_part *part, struct p2ptest_rdma *dev,
		     unsigned long start, unsigned long end, unsigned int shift)
{
	part->dev = dev;
	part->start = start;
	part->shift = shift;
	part->nr = (end - start) >> shift;
	part->mtt = kvcalloc(part->nr, sizeof(*part->mtt), GFP_KERNEL);
	return part->mtt ? 0 : -ENOMEM;
}

static void part_set_odp(struct rdma_part *part, struct ib_umem_odp *odp)
{
	part->odp = odp;
	odp->private = part;
}

/* Nobody uses the addresses any more when this returns. */
static void part_end(struct rdma_part *part)
{
	if (part->odp)
		ib_umem_odp_release(part->odp);
	kvfree(part->mtt);
}

static struct rdma_part *part_create(struct rdma_mr *mr, unsigned long idx)
{
	const unsigned long start = idx << PART_SHIFT;
	struct ib_umem_odp *odp;
	struct rdma_part *part;
	int ret;

	part = kzalloc_obj(*part);
	if (!part)
		return ERR_PTR(-ENOMEM);
	ret = part_init(part, mr->dev, start, start + PART_SIZE, PAGE_SHIFT);
	if (ret)
		goto err_part;

	odp = ib_umem_odp_alloc_child(mr->root, start, PART_SIZE, &part_ops);
	if (IS_ERR(odp)) {
		ret = PTR_ERR(odp);
		goto err_part;
	}
	part_set_odp(part, odp);

	ret = xa_err(xa_store(&mr->parts, idx, part, GFP_KERNEL));
	if (ret)
		goto err_part;
	return part;

err_part:
	part_end(part);
	kfree(part);
	return ERR_PTR(ret);
}

/* The part of a region that has @addr. NULL if there is none yet. */
struct rdma_part *rdma_mr_part(struct rdma_mr *mr, unsigned long addr,
			       bool create)
{
	const unsigned long idx = addr >> PART_SHIFT;
	struct rdma_part *part;

	if (!mr->root)
		return &mr->part;

	part = xa_load(&mr->parts, idx);
	if (part || !create)
		return part;

	mutex_lock(&mr->parts_lock);
	part = xa_load(&mr->parts, idx);
	if (!part)
		part = part_create(mr, idx);
	mutex_unlock(&mr->parts_lock);
	return part;
}

static int mr_init_pinned(struct rdma_mr *mr, int access)
{
	const u64 flags = MTT_PRESENT |
			  (mr->flags & P2PTEST_RDMA_MR_WRITE ? MTT_WRITE : 0);
	struct ib_block_iter iter;
	unsigned long idx = 0;
	int ret;

	ret = part_init(&mr->part, mr->dev, mr->addr & PAGE_MASK,
			PAGE_ALIGN(mr->addr + mr->len), PAGE_SHIFT);
	if (ret)
		return ret;
	mr->umem = ib_umem_get_va(&mr->dev->ibdev, mr->addr, mr->len, access);
	if (IS_ERR(mr->umem))
		return PTR_ERR(mr->umem);

	rdma_umem_for_each_dma_block(mr->umem, &iter, PAGE_SIZE)
		mr->part.mtt[idx++] =
			rdma_block_iter_dma_address(&iter) | flags;
	return 0;
}

static int mr_init_odp(struct rdma_mr *mr, int access)
{
	struct ib_umem_odp *odp;

	odp = ib_umem_odp_get(&mr->dev->ibdev, mr->addr, mr->len, access,
			      &part_ops);
	if (IS_ERR(odp))
		return PTR_ERR(odp);
	part_set_odp(&mr->part, odp);
	/* The core knows best how large huge pages are. */
	return part_init(&mr->part, mr->dev, ib_umem_start(odp),
			 ib_umem_end(odp), odp->page_shift);
}

static int mr_init_implicit(struct rdma_mr *mr, int access)
{
	mr->root = ib_umem_odp_alloc_implicit(&mr->dev->ibdev, access);
	return PTR_ERR_OR_ZERO(mr->root);
}

/* What the RDMA core calls it, if it permits that. */
static int mr_access(struct rdma_mr *mr, u32 flags)
{
	int access = IB_ACCESS_REMOTE_READ;
	int ret;

	if (flags & P2PTEST_RDMA_MR_WRITE)
		access |= IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE;
	if (flags & P2PTEST_RDMA_MR_ATOMIC)
		access |= IB_ACCESS_REMOTE_ATOMIC;
	if (flags & P2PTEST_RDMA_MR_WINDOWS)
		access |= IB_ACCESS_MW_BIND;
	if (flags & P2PTEST_RDMA_MR_ODP)
		access |= IB_ACCESS_ON_DEMAND;
	if (flags & P2PTEST_RDMA_MR_HUGETLB)
		access |= IB_ACCESS_HUGETLB;
	ret = ib_check_mr_access(&mr->dev->ibdev, access);
	return ret ?: access;
}

/*
 * The device does not tell atomic access from other access: the RDMA core is
 * all that there is to ask.
 */
int rdma_mr_rereg(struct rdma_mr *mr, u32 flags)
{
	int access = mr_access(mr, mr->flags | flags);
	struct ib_umem_odp *odp = mr->part.odp;
	int ret;

	if (access < 0)
		return access;
	if (mr->root)
		return -EOPNOTSUPP;
	ret = ib_umem_check_rereg(odp ? &odp->umem : mr->umem,
				  IB_MR_REREG_ACCESS, access);
	if (ret || !odp || ib_umem_odp_may_p2p(&mr->dev->ibdev, access))
		return ret;

	guard(mutex)(&odp->umem_mutex);
	if (ib_umem_odp_forbid_p2p(odp))
		part_zap(&mr->part, mr->part.start, rdma_part_end(&mr->part));
	return 0;
}

static int mr_init(struct rdma_mr *mr)
{
	int access = mr_access(mr, mr->flags);

	if (access < 0)
		return access;

	if (mr->flags & P2PTEST_RDMA_MR_IMPLICIT)
		return mr_init_implicit(mr, access);
	if (mr->flags & P2PTEST_RDMA_MR_ODP)
		return mr_init_odp(mr, access);
	return mr_init_pinned(mr, access);
}

static void mr_free(struct kref *kref)
{
	struct rdma_mr *mr = container_of(kref, struct rdma_mr, kref);
	struct rdma_part *part;
	unsigned long idx;

	xa_for_each(&mr->parts, idx, part) {
		part_end(part);
		kfree(part);
	}
	xa_destroy(&mr->parts);
	part_end(&mr->part);
	if (!IS_ERR_OR_NULL(mr->root))
		ib_umem_odp_release(mr->root);
	if (!IS_ERR_OR_NULL(mr->umem))
		ib_umem_release(mr->umem);
	mutex_destroy(&mr->parts_lock);
	mmdrop(mr->mm);
	kfree(mr);
}

void rdma_mr_put(struct rdma_mr *mr)
{
	kref_put(&mr->kref, mr_free);
}

struct rdma_mr *rdma_mr_create(struct p2ptest_rdma *dev, struct file *file,
			       unsigned long addr, unsigned long len, u32 flags)
{
	const bool implicit = flags & P2PTEST_RDMA_MR_IMPLICIT;
	unsigned long end;
	struct rdma_mr *mr;
	int ret;

	if (!current->mm)
		return ERR_PTR(-EPERM);
	if (!len || check_add_overflow(addr, len, &end) ||
	    PAGE_ALIGN(end) < end)
		return ERR_PTR(-EINVAL);
	if (flags & (P2PTEST_RDMA_MR_IMPLICIT | P2PTEST_RDMA_MR_HUGETLB) &&
	    !(flags & P2PTEST_RDMA_MR_ODP))
		return ERR_PTR(-EINVAL);
	if (len > (implicit ? MAX_IMPLICIT : MAX_LEN))
		return ERR_PTR(-E2BIG);

	mr = kzalloc_obj(*mr);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	kref_init(&mr->kref);
	xa_init(&mr->parts);
	mutex_init(&mr->parts_lock);
	mr->dev = dev;
	mr->file = file;
	mr->mm = current->mm;
	mmgrab(mr->mm);
	mr->addr = addr;
	mr->len = len;
	mr->flags = flags;

	ret = mr_init(mr);
	if (ret) {
		rdma_mr_put(mr);
		return ERR_PTR(ret);
	}
	return mr;
}
