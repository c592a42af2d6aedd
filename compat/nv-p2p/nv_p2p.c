// SPDX-License-Identifier: GPL-2.0
/*
 * GPUDirect RDMA's kernel interface for device private memory of any GPU.
 *
 * Not for upstream: it lets drivers that exist for GPUDirect RDMA run on the
 * series without a change. A driver that is changed uses hmm-registration.h.
 *
 * A page table is a registration (linux/hmm-registration.h) of the memory for
 * the GPU itself, which reaches its own BAR in any topology: that gives the
 * physical addresses, and tells when pages move. Each DMA mapping is one for
 * the device that it is for. All are of the kind that leaves pages where they
 * are.
 *
 * States. A table is LIVE until the client puts it (PUT), or one of its
 * registrations is revoked (REVOKING, then REVOKED). Whoever changes LIVE wins:
 * the client's callback runs at most once, and not after nvidia_p2p_put_pages()
 * has begun to succeed. A registration is LIVE while its revocation matters to
 * the client, and IN while it is in progress.
 *
 * Locks. The callback runs with the lock of a registration held, and takes
 * locks of the client. The client calls us with them held, except to get, put
 * and map pages. So a function that the client may call then takes
 * the lock of a registration only when it has changed that from LIVE to DEAD,
 * and thus knows that no callback runs under this lock, nor will. To destroy a
 * registration waits for invalidations of all of the process, and thus for
 * callbacks of others; a work item does that. Only nvidia_p2p_put_pages()
 * waits, for the callback of its table: clients free what the callback uses
 * when it has returned, whatever it returned.
 *
 * Lifetimes. A table is referenced by the client, until it puts or frees it; by
 * each of its mappings; and by its registration. What the client frees in the
 * callback stays in the list until the callback is over, to be waited for. A
 * client that frees nothing after the callback keeps the table until this
 * module is unloaded.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/hmm-registration.h>
#include <linux/hmm.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "nv-p2p.h"

#define GPU_PAGE	0x10000UL
#define SMALL		(GPU_PAGE >> PAGE_SHIFT)
/* Larger than any memory of a GPU; the arrays are kept small enough to count. */
#define MAX_LEN		SZ_64G
#define ROUNDS		10

enum { NEW, LIVE, IN, DEAD, PUT, REVOKING, REVOKED };

struct table;

/* A registration, of a table or a mapping */
struct part {
	struct table *table;
	atomic_t state;			/* NEW, LIVE, IN, DEAD */
	struct hmm_registration *reg;
	struct work_struct end;
};

struct table {
	struct nvidia_p2p_page_table nv;
	struct kref ref;
	struct list_head list;		/* in tables, under lists */
	atomic_t state;			/* LIVE, PUT, REVOKING, REVOKED */
	bool freed;			/* in the callback; under lists */
	struct task_struct *revoker;	/* whose callback it is */
	struct completion revoked;
	struct mm_struct *mm;		/* to compare; grabbed */
	unsigned long start, len;
	struct pci_dev *gpu;
	bool unbound;			/* the GPU's driver; under lists */
	struct part part;
	void (*callback)(void *data);
	void *data;
	struct nvidia_p2p_page *pages;
	u8 uuid[NVIDIA_P2P_GPU_UUID_LEN];
};

struct mapping {
	struct nvidia_p2p_dma_mapping nv;
	struct list_head list;		/* in mappings, under lists */
	struct part part;
};

static LIST_HEAD(mappings);
static LIST_HEAD(tables);
/* Nothing of a registration is called under it. */
static DEFINE_MUTEX(lists);
static struct workqueue_struct *workqueue;

int nvidia_p2p_cap_persistent_pages;
EXPORT_SYMBOL_GPL(nvidia_p2p_cap_persistent_pages);

/* Tables */

static void table_free(struct kref *ref)
{
	struct table *table = container_of(ref, struct table, ref);

	mmdrop(table->mm);
	pci_dev_put(table->gpu);
	kvfree(table->nv.pages);
	kvfree(table->pages);
	kfree(table);
}

static void table_put(struct table *table)
{
	kref_put(&table->ref, table_free);
}

static void table_end(struct work_struct *work)
{
	struct table *table = container_of(work, struct table, part.end);

	hmm_registration_destroy(table->part.reg);
	table_put(table);
}

/* The client's table, if it is one; with a reference */
static struct table *table_get(struct nvidia_p2p_page_table *nv)
{
	struct table *table;

	guard(mutex)(&lists);
	list_for_each_entry(table, &tables, list) {
		if (&table->nv == nv) {
			kref_get(&table->ref);
			return table;
		}
	}
	return NULL;
}

/* The client does without it: true for whoever says so first */
static bool table_forget(struct table *table)
{
	guard(mutex)(&lists);
	if (list_empty(&table->list))
		return false;
	list_del_init(&table->list);
	return true;
}

/* Gives the client's reference back, and ends the registration */
static void table_close(struct table *table)
{
	if (!table_forget(table))
		return;
	table_put(table);
	queue_work(workqueue, &table->part.end);
}

/* Tells the client, and does what it asks for meanwhile */
static void table_revoke(struct table *table)
{
	bool freed;

	table->revoker = current;
	table->callback(table->data);
	scoped_guard(mutex, &lists) {
		table->revoker = NULL;
		atomic_set(&table->state, REVOKED);
		freed = table->freed;
	}
	complete_all(&table->revoked);
	if (freed)
		table_close(table);
}

/* Some pages are about to move: for the client it is the end of all */
static void part_revoke(void *data, unsigned long first, unsigned long nr)
{
	struct part *part = data;
	struct table *table = part->table;

	if (atomic_cmpxchg(&part->state, NEW, DEAD) == NEW ||
	    atomic_cmpxchg(&part->state, LIVE, IN) != LIVE)
		return;
	switch (atomic_cmpxchg(&table->state, LIVE, REVOKING)) {
	case LIVE:
		table_revoke(table);
		break;
	case REVOKING:
		/* By another registration: DMA has stopped when it returns. */
		wait_for_completion(&table->revoked);
		break;
	}
	atomic_set(&part->state, DEAD);
}

static const struct hmm_registration_ops ops = { .revoke = part_revoke };

/* Do the pages make up large ones? */
static bool all_large(const struct hmm_registration_page *pages,
		      unsigned long nr, bool dma)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		u64 step = (i % SMALL) << PAGE_SHIFT;
		const struct hmm_registration_page *first =
			&pages[i - i % SMALL];

		/* A device may know them by their number. */
		if (!IS_ALIGNED(dma ? first->addr : first->phys, GPU_PAGE))
			return false;
		if (dma ? pages[i].addr != first->addr + step :
			  pages[i].phys != first->phys + step)
			return false;
	}
	return true;
}

static bool is_in_bar(struct pci_dev *pdev, phys_addr_t phys)
{
	int i;

	for (i = 0; i < PCI_STD_NUM_BARS; i++) {
		if (pci_resource_flags(pdev, i) & IORESOURCE_MEM &&
		    phys >= pci_resource_start(pdev, i) &&
		    phys <= pci_resource_end(pdev, i))
			return true;
	}
	return false;
}

static bool all_in_bar(struct pci_dev *pdev,
		       const struct hmm_registration_page *pages,
		       unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (!is_in_bar(pdev, pages[i].phys))
			return false;
	}
	return true;
}

struct dead {
	struct hmm_registration *reg;
	struct work_struct work;
};

static void reg_destroy(struct work_struct *work)
{
	struct dead *dead = container_of(work, struct dead, work);

	hmm_registration_destroy(dead->reg);
	kfree(dead);
}

/* Ends a registration of which the client never heard */
static void reg_end(struct hmm_registration *reg)
{
	struct dead *dead = kmalloc_obj(*dead, GFP_KERNEL | __GFP_NOFAIL);

	/* Not LIVE, so nobody is in a callback; and nobody looks at it again. */
	hmm_registration_close(reg);
	dead->reg = reg;
	INIT_WORK(&dead->work, reg_destroy);
	queue_work(workqueue, &dead->work);
}

/* Registers memory for @dev, and finds all pages where they are */
static int part_register(struct part *part, struct device *dev,
			 struct hmm_registration_page *pages)
{
	const unsigned int flags = HMM_REGISTRATION_WRITE |
				   HMM_REGISTRATION_P2P |
				   HMM_REGISTRATION_RESIDENT;
	int ret;

	/* A revocation from now on is noticed when it becomes LIVE. */
	atomic_set(&part->state, NEW);
	part->reg = hmm_registration_create(dev, part->table->start,
					    part->table->len, flags, &ops,
					    part);
	if (IS_ERR(part->reg))
		return PTR_ERR(part->reg);
	ret = hmm_registration_map(part->reg, 0,
				   part->table->len >> PAGE_SHIFT, pages);
	if (ret)
		reg_end(part->reg);
	return ret;
}

/*
 * Whose memory is it? The GPU itself reaches it in any topology, so the GPU is
 * the one that finds it, and in its own BAR. Only devices with memory for peers
 * are asked. -EINVAL if it is memory of none.
 */
static int find_gpu(struct table *table, struct hmm_registration_page *pages)
{
	struct pci_dev *pdev = NULL;
	int ret = -EINVAL;

	for_each_pci_dev(pdev) {
		if (!rcu_access_pointer(pdev->p2pdma))
			continue;
		/* Bound while it is asked; when it goes, it revokes all it has. */
		device_lock(&pdev->dev);
		ret = -EOPNOTSUPP;
		if (device_is_bound(&pdev->dev))
			ret = part_register(&table->part, &pdev->dev, pages);
		if (!ret && !all_in_bar(pdev, pages, table->len >> PAGE_SHIFT)) {
			/* Of a neighbour that this one reaches, or of both. */
			reg_end(table->part.reg);
			ret = is_in_bar(pdev, pages[0].phys) ? -EINVAL :
							       -EOPNOTSUPP;
		}
		if (!ret) {
			table->gpu = pdev;	/* and its reference */
			kref_get(&table->ref);	/* the client's */
			/* gpu_unbound() has to find it as soon as it can run */
			scoped_guard(mutex, &lists)
				list_add(&table->list, &tables);
		}
		device_unlock(&pdev->dev);
		/* -EIO: it cannot map what another one may have. */
		if (ret != -EOPNOTSUPP && ret != -EIO)
			break;
	}
	if (ret)
		pci_dev_put(pdev);
	return ret;
}

/* Errors of the interface, which has few */
static int nv_error(int ret)
{
	switch (ret) {
	case 0:
	case -ENOMEM:
		return ret;
	case -EOPNOTSUPP:
		return -ENOTSUPP;
	case -EBUSY:
	case -EINTR:
	case -EIO:
		return -EIO;
	default:
		return -EINVAL;
	}
}

static int table_fill(struct table *table,
		      const struct hmm_registration_page *pages)
{
	const unsigned long nr = table->len >> PAGE_SHIFT;
	const bool large = all_large(pages, nr, false);
	const unsigned long step = large ? SMALL : 1;
	unsigned long i;

	table->nv.version = NVIDIA_P2P_PAGE_TABLE_VERSION;
	table->nv.page_size = large ? NVIDIA_P2P_PAGE_SIZE_64KB :
				      NVIDIA_P2P_PAGE_SIZE_4KB;
	table->nv.entries = nr / step;
	table->nv.gpu_uuid = table->uuid;
	memcpy(table->uuid, pci_name(table->gpu),
	       min(strlen(pci_name(table->gpu)), sizeof(table->uuid)));
	table->pages = kvcalloc(nr / step, sizeof(*table->pages), GFP_KERNEL);
	table->nv.pages = kvcalloc(nr / step, sizeof(*table->nv.pages),
				   GFP_KERNEL);
	if (!table->pages || !table->nv.pages)
		return -ENOMEM;
	for (i = 0; i < nr / step; i++) {
		table->pages[i].physical_address = pages[i * step].phys;
		table->nv.pages[i] = &table->pages[i];
	}
	return 0;
}

static struct table *table_new(unsigned long start, unsigned long len,
			       void (*callback)(void *data), void *data)
{
	struct hmm_registration_page *pages;
	struct table *table;
	int ret = -ENOMEM;

	pages = kvcalloc(len >> PAGE_SHIFT, sizeof(*pages), GFP_KERNEL);
	table = kzalloc_obj(*table);
	if (!pages || !table)
		goto err_free;
	kref_init(&table->ref);
	INIT_LIST_HEAD(&table->list);
	INIT_WORK(&table->part.end, table_end);
	init_completion(&table->revoked);
	table->part.table = table;
	table->start = start;
	table->len = len;
	table->callback = callback;
	table->data = data;
	table->mm = current->mm;
	mmgrab(table->mm);

	ret = find_gpu(table, pages);
	if (ret)
		goto err_put;
	ret = table_fill(table, pages);
	if (ret)
		goto err_end;
	kvfree(pages);
	return table;

err_end:
	/* As for a client: gpu_unbound() may have found it */
	table_close(table);
	table = NULL;
	goto err_free;
err_put:
	table_put(table);
	table = NULL;
err_free:
	kfree(table);
	kvfree(pages);
	return ERR_PTR(ret);
}

/**
 * nvidia_p2p_get_pages - get the addresses of memory of a GPU
 * @p2p_token: ignored: the memory is that of the caller's process
 * @va_space: ignored
 * @virtual_address: first byte, a multiple of 64 KiB
 * @length: bytes, a multiple of 64 KiB
 * @page_table: out
 * @free_callback: called before any of the pages moves, for whatever reason
 * @data: for @free_callback
 *
 * -EINVAL if that is not memory of one GPU that the process may write to,
 * -ENOTSUPP if the GPU has no addresses for it, or without @free_callback: pages
 * cannot be made to stay. Pages are of 64 KiB if all of them can be, else of
 * 4 KiB.
 */
int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space,
			 uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data)
{
	struct table *table;
	int rounds;

	if (!page_table || !length || !current->mm ||
	    !IS_ALIGNED(virtual_address, GPU_PAGE) ||
	    !IS_ALIGNED(length, GPU_PAGE) ||
	    virtual_address + length < virtual_address || length > MAX_LEN)
		return -EINVAL;
	if (!free_callback)
		return -ENOTSUPP;

	for (rounds = 0; rounds < ROUNDS; rounds++) {
		table = table_new(virtual_address, length, free_callback, data);
		if (IS_ERR(table))
			return nv_error(PTR_ERR(table));
		atomic_set(&table->state, LIVE);
		/* The callback may run from now on, also before we return. */
		*page_table = &table->nv;
		if (atomic_cmpxchg(&table->part.state, NEW, LIVE) == NEW)
			return 0;
		/* It was revoked before anybody had it. */
		*page_table = NULL;
		table_close(table);
	}
	return -EIO;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages);

/* Mappings */

static void mapping_end(struct work_struct *work)
{
	struct mapping *mapping = container_of(work, struct mapping, part.end);

	hmm_registration_destroy(mapping->part.reg);
	table_put(mapping->part.table);
	kvfree(mapping->nv.dma_addresses);
	kfree(mapping);
}

/*
 * Unmaps now if that cannot be in the way of a callback, and frees later. Locks of
 * the client are held, which callbacks take under locks of registrations. That this
 * one has no callback any more is not for lockdep to see.
 */
static void mapping_close(struct mapping *mapping)
{
	if (atomic_cmpxchg(&mapping->part.state, LIVE, DEAD) == LIVE) {
		lockdep_off();
		hmm_registration_close(mapping->part.reg);
		lockdep_on();
	}
	queue_work(workqueue, &mapping->part.end);
}

/* A mapping that is @nv, or one of @table, which is not in the list any more */
static struct mapping *mapping_take(struct nvidia_p2p_dma_mapping *nv,
				    struct table *table)
{
	struct mapping *mapping;

	guard(mutex)(&lists);
	list_for_each_entry(mapping, &mappings, list) {
		if (&mapping->nv == nv || mapping->part.table == table) {
			list_del_init(&mapping->list);
			return mapping;
		}
	}
	return NULL;
}

static int mapping_fill(struct mapping *mapping,
			const struct hmm_registration_page *pages)
{
	struct table *table = mapping->part.table;
	const bool large = table->nv.page_size == NVIDIA_P2P_PAGE_SIZE_64KB;
	u32 i;

	/* The size of pages is that of the table. */
	if (large && !all_large(pages, table->len >> PAGE_SHIFT, true))
		return -EOPNOTSUPP;
	mapping->nv.version = NVIDIA_P2P_DMA_MAPPING_VERSION;
	mapping->nv.page_size_type = table->nv.page_size;
	mapping->nv.entries = table->nv.entries;
	mapping->nv.dma_addresses = kvcalloc(table->nv.entries, sizeof(u64),
					     GFP_KERNEL);
	if (!mapping->nv.dma_addresses)
		return -ENOMEM;
	for (i = 0; i < table->nv.entries; i++)
		mapping->nv.dma_addresses[i] =
			pages[large ? i * SMALL : i].addr;
	return 0;
}

/* Takes over the reference to @table if it succeeds */
static int mapping_new(struct table *table, struct pci_dev *peer,
		       struct nvidia_p2p_dma_mapping **nv)
{
	struct hmm_registration_page *pages;
	struct mapping *mapping;
	int ret = -ENOMEM;
	bool live;

	/* The addresses are those of the process that registers. */
	if (current->mm != table->mm || atomic_read(&table->state) != LIVE)
		return -EINVAL;
	pages = kvcalloc(table->len >> PAGE_SHIFT, sizeof(*pages), GFP_KERNEL);
	mapping = kzalloc_obj(*mapping);
	if (!pages || !mapping)
		goto out_free;
	INIT_WORK(&mapping->part.end, mapping_end);
	mapping->part.table = table;
	mapping->nv.pci_dev = peer;
	mapping->nv.private = mapping;
	ret = part_register(&mapping->part, &peer->dev, pages);
	if (ret)
		goto out_free;
	ret = mapping_fill(mapping, pages);
	if (ret)
		goto out_destroy;
	/* As soon as it is in the list, somebody else may end and free it. */
	scoped_guard(mutex, &lists) {
		live = atomic_cmpxchg(&mapping->part.state, NEW, LIVE) == NEW &&
		       atomic_read(&table->state) == LIVE;
		if (live) {
			list_add(&mapping->list, &mappings);
			*nv = &mapping->nv;
		}
	}
	kvfree(pages);
	if (live)
		return 0;
	/* Revoked meanwhile. mapping_end() and our caller put the table. */
	kref_get(&table->ref);
	mapping_close(mapping);
	return -EINVAL;

out_destroy:
	atomic_set(&mapping->part.state, DEAD);
	reg_end(mapping->part.reg);
	kvfree(mapping->nv.dma_addresses);
out_free:
	kfree(mapping);
	kvfree(pages);
	return ret;
}

/**
 * nvidia_p2p_dma_map_pages - get addresses for DMA of a device
 * @peer: the device; it stays bound until the mapping is unmapped or freed
 * @page_table: of nvidia_p2p_get_pages(), by the same process
 * @dma_mapping: out
 *
 * -ENOTSUPP if the device cannot reach the memory. Pages stay where they are.
 *
 * Context: no lock may be held that the callback of any table of the process
 *	takes, that of @page_table included: it may run at any time.
 */
int nvidia_p2p_dma_map_pages(struct pci_dev *peer,
			     struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping)
{
	struct table *table;
	int ret;

	if (!peer || !page_table || !dma_mapping)
		return -EINVAL;
	table = table_get(page_table);
	if (!table)
		return -EINVAL;
	ret = mapping_new(table, peer, dma_mapping);
	if (ret)
		table_put(table);
	return nv_error(ret);
}
EXPORT_SYMBOL_GPL(nvidia_p2p_dma_map_pages);

/**
 * nvidia_p2p_free_dma_mapping - give a mapping back in the callback
 * @dma_mapping: of nvidia_p2p_dma_map_pages()
 */
int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping)
{
	struct mapping *mapping;

	if (!dma_mapping)
		return -EINVAL;
	mapping = mapping_take(dma_mapping, NULL);
	if (!mapping)
		return -EINVAL;
	mapping_close(mapping);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_free_dma_mapping);

/**
 * nvidia_p2p_dma_unmap_pages - give a mapping back
 * @peer: the device
 * @page_table: what it is a mapping of
 * @dma_mapping: of nvidia_p2p_dma_map_pages(); the device does not use it any
 *	more
 */
int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
			       struct nvidia_p2p_page_table *page_table,
			       struct nvidia_p2p_dma_mapping *dma_mapping)
{
	if (!peer || !page_table)
		return -EINVAL;
	return nvidia_p2p_free_dma_mapping(dma_mapping);
}
EXPORT_SYMBOL_GPL(nvidia_p2p_dma_unmap_pages);

/**
 * nvidia_p2p_put_pages - give pages back
 * @p2p_token: ignored
 * @va_space: ignored
 * @virtual_address: as for nvidia_p2p_get_pages()
 * @page_table: of nvidia_p2p_get_pages()
 *
 * -EINVAL if the callback has begun: then it is not for the client to put it,
 * but to free it. Returns when the callback is over, unless called by it.
 *
 * Context: the caller holds no lock that the callback takes.
 */
int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space,
			 uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	struct table *table = page_table ? table_get(page_table) : NULL;
	struct mapping *mapping;
	int ret = -EINVAL;

	if (!table)
		return -EINVAL;
	if (virtual_address != table->start)
		goto out;
	switch (atomic_cmpxchg(&table->state, LIVE, PUT)) {
	case LIVE:
		while ((mapping = mapping_take(NULL, table)))
			mapping_close(mapping);
		atomic_cmpxchg(&table->part.state, LIVE, DEAD);
		table_close(table);
		ret = 0;
		break;
	case REVOKING:
		if (READ_ONCE(table->revoker) != current)
			wait_for_completion(&table->revoked);
		break;
	}
out:
	table_put(table);
	return ret;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);

/**
 * nvidia_p2p_free_page_table - free a table in the callback, or after it
 * @page_table: of nvidia_p2p_get_pages()
 *
 * -EINVAL if it is not revoked.
 */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	struct table *table = page_table ? table_get(page_table) : NULL;
	int ret = -EINVAL;

	if (!table)
		return -EINVAL;
	scoped_guard(mutex, &lists) {
		if (atomic_read(&table->state) == REVOKING && !table->freed) {
			table->freed = true;
			ret = 0;
		}
	}
	if (ret && atomic_read(&table->state) == REVOKED && !table->freed) {
		table_close(table);
		ret = 0;
	}
	table_put(table);
	return ret;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_free_page_table);

/* Persistent pages have no callback for when they move, and they do move. */

int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length,
				    struct nvidia_p2p_page_table **page_table,
				    uint32_t flags)
{
	return -ENOTSUPP;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(uint64_t virtual_address,
				    struct nvidia_p2p_page_table *page_table,
				    uint32_t flags)
{
	return -EINVAL;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages_persistent);

struct unbound {
	struct device *dev;
	struct work_struct work;
};

/* A table of a GPU whose driver is gone; each one once */
static struct table *table_unbound(struct device *dev)
{
	struct table *table;

	guard(mutex)(&lists);
	list_for_each_entry(table, &tables, list) {
		if (&table->gpu->dev == dev && !table->unbound) {
			table->unbound = true;
			return table;
		}
	}
	return NULL;
}

/* In the workqueue, where table_end() does not destroy one at the same time */
static void close_unbound(struct work_struct *work)
{
	struct unbound *unbound = container_of(work, struct unbound, work);
	struct table *table;

	while ((table = table_unbound(unbound->dev)))
		hmm_registration_close(table->part.reg);
}

/*
 * A registration is closed before its device is unbound, and the client need
 * not be that fast. The device had moved all its pages, which told the client,
 * so nothing is mapped any more. The peers of mappings are the client's.
 */
static int gpu_unbound(struct notifier_block *nb, unsigned long action,
		       void *data)
{
	struct unbound unbound = { .dev = data };

	if (action != BUS_NOTIFY_UNBOUND_DRIVER)
		return NOTIFY_DONE;
	INIT_WORK_ONSTACK(&unbound.work, close_unbound);
	queue_work(workqueue, &unbound.work);
	flush_work(&unbound.work);
	destroy_work_on_stack(&unbound.work);
	return NOTIFY_OK;
}

static struct notifier_block gpu_notifier = { .notifier_call = gpu_unbound };

static int __init nv_p2p_init(void)
{
	int ret;

	workqueue = alloc_ordered_workqueue("nv_p2p", 0);
	if (!workqueue)
		return -ENOMEM;
	ret = bus_register_notifier(&pci_bus_type, &gpu_notifier);
	if (ret)
		destroy_workqueue(workqueue);
	return ret;
}
module_init(nv_p2p_init);

/* All clients are gone, as they use our symbols. */
static void __exit nv_p2p_exit(void)
{
	struct mapping *mapping, *next_mapping;
	struct table *table, *next;

	bus_unregister_notifier(&pci_bus_type, &gpu_notifier);
	list_for_each_entry_safe(mapping, next_mapping, &mappings, list) {
		list_del_init(&mapping->list);
		atomic_cmpxchg(&mapping->part.state, LIVE, DEAD);
		queue_work(workqueue, &mapping->part.end);
	}
	list_for_each_entry_safe(table, next, &tables, list) {
		atomic_cmpxchg(&table->part.state, LIVE, DEAD);
		table_close(table);
	}
	destroy_workqueue(workqueue);
}
module_exit(nv_p2p_exit);

MODULE_DESCRIPTION("GPUDirect RDMA's interface for device private memory");
MODULE_LICENSE("GPL");
