// SPDX-License-Identifier: GPL-2.0
/*
 * A consumer of hmm_range_fault() that does nothing but look at the clock. It
 * is built for the base and for the series, so that both do the same work. DMA
 * addresses are those of the test NIC, which never uses them.
 */
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/hmm-dma.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>
#include <linux/sched/mm.h>
#include <linux/timex.h>
#include <linux/uaccess.h>

#include "hmm_bench.h"

/* QEMU's edu device */
#define NIC_VENDOR	0x1234
#define NIC_DEVICE	0x11e8

/* QEMU's ivshmem-plain */
#define GPU_VENDOR	0x1af4
#define GPU_DEVICE	0x1110
#define GPU_BAR		2

struct bench {
	struct mmu_interval_notifier notifier;
	struct mutex lock;
	struct hmm_dma_map map;
	dma_addr_t *addrs;
	struct device *nic;
	/* BENCH_KEEP, under the lock: what is mapped, and BENCH_MAP_RANGE */
	unsigned long kept;
	bool by_range;
};

static struct pci_dev *bench_nic;

static void bench_unmap(struct bench *bench, unsigned long pages, bool by_range)
{
	unsigned long i;

#ifdef BENCH_RANGE
	if (by_range) {
		hmm_dma_unmap_range(bench->nic, &bench->map, 0, pages);
		return;
	}
#endif
	for (i = 0; i < pages; i++)
		hmm_dma_unmap_pfn(bench->nic, &bench->map, i);
}

/* Under the lock, or once the notifier is gone */
static void bench_unmap_kept(struct bench *bench)
{
	bench_unmap(bench, bench->kept, bench->by_range);
	bench->kept = 0;
}

static bool bench_invalidate(struct mmu_interval_notifier *notifier,
			     const struct mmu_notifier_range *range,
			     unsigned long seq)
{
	struct bench *bench = container_of(notifier, struct bench, notifier);

	if (!mmu_notifier_range_blockable(range))
		return false;
	/* Nothing else is mapped, except under the lock */
	mutex_lock(&bench->lock);
	mmu_interval_set_seq(notifier, seq);
	if (bench->kept)
		bench_unmap_kept(bench);
	mutex_unlock(&bench->lock);
	return true;
}

static const struct mmu_interval_notifier_ops bench_ops = {
	.invalidate = bench_invalidate,
};

static void bench_least(__u64 *least, cycles_t ticks)
{
	if (!*least || ticks < *least)
		*least = ticks;
}

static bool bench_is_peer(unsigned long pfn)
{
#if defined(BENCH_P2P)
	return pfn & HMM_PFN_P2P_ALIAS;
#elif defined(BENCH_CALLBACK)
	return is_pci_p2pdma_page(hmm_pfn_to_page(pfn));
#else
	return false;
#endif
}

static void bench_look(struct bench *bench, struct hmm_bench *args)
{
	unsigned long *pfns = bench->map.pfn_list;
	unsigned long i;

	args->host = 0;
	args->alias = 0;
	args->runs = 0;
	for (i = 0; i < args->pages; i++) {
		if (!(pfns[i] & HMM_PFN_VALID))
			continue;
		if (bench_is_peer(pfns[i]))
			args->alias++;
		else
			args->host++;
		if (!i || hmm_pfn_to_phys(pfns[i]) !=
			  hmm_pfn_to_phys(pfns[i - 1]) + PAGE_SIZE)
			args->runs++;
	}
}

/* Reverses the order of runs of pages */
static void bench_reorder(struct bench *bench, struct hmm_bench *args)
{
	unsigned long *pfns = bench->map.pfn_list;
	unsigned long i, j, k;

	for (i = 0, j = args->pages - args->run; i < j;
	     i += args->run, j -= args->run)
		for (k = 0; k < args->run; k++)
			swap(pfns[i + k], pfns[j + k]);
}

#ifdef BENCH_RANGE
static int bench_map_range(struct bench *bench, struct hmm_bench *args)
{
	struct pci_p2pdma_map_state state = {};
	cycles_t start, mapped;
	size_t done;

	if (args->flags & BENCH_SPAN_MAP)
		SPAN(3);
	start = get_cycles();
	done = hmm_dma_map_range(bench->nic, &bench->map, 0, args->pages,
				 &state, bench->addrs);
	mapped = get_cycles();
	SPAN(0);
	if (!(args->flags & BENCH_KEEP))
		bench_unmap(bench, args->pages, true);
	bench_least(&args->unmap, get_cycles() - mapped);
	bench_least(&args->map, mapped - start);
	return done == args->pages ? 0 : -EIO;
}

/* In pieces, as mlx5 does. Returns whether one failed */
static bool bench_look_up_range(struct bench *bench, struct hmm_bench *args)
{
	struct pci_p2pdma_map_state state = {};
	bool failed = false;
	unsigned long i, nr;

	for (i = 0; i < args->pages; i += nr) {
		nr = min(args->pages - i, BENCH_LOOK_UP_PAGES);
		failed |= hmm_dma_map_range(bench->nic, &bench->map, i, nr,
					    &state, bench->addrs + i) != nr;
	}
	return failed;
}
#else
static int bench_map_range(struct bench *bench, struct hmm_bench *args)
{
	return -EOPNOTSUPP;
}

static bool bench_look_up_range(struct bench *bench, struct hmm_bench *args)
{
	return true;
}
#endif

static bool bench_look_up_each(struct bench *bench, struct hmm_bench *args)
{
	struct pci_p2pdma_map_state state = {};
	bool failed = false;
	unsigned long i;

	for (i = 0; i < args->pages; i++) {
		bench->addrs[i] = hmm_dma_map_pfn(bench->nic, &bench->map, i,
						  &state);
		failed |= bench->addrs[i] == DMA_MAPPING_ERROR;
	}
	return failed;
}

static int bench_look_up(struct bench *bench, struct hmm_bench *args)
{
	bool failed = bench_look_up_each(bench, args);
	cycles_t start = get_cycles();

	if (args->flags & BENCH_MAP_RANGE)
		failed |= bench_look_up_range(bench, args);
	else
		failed |= bench_look_up_each(bench, args);
	bench_least(&args->map, get_cycles() - start);
	bench_unmap(bench, args->pages, false);
	return failed ? -EIO : 0;
}

static int bench_map(struct bench *bench, struct hmm_bench *args)
{
	struct pci_p2pdma_map_state state = {};
	cycles_t start, mapped;
	bool failed = false;
	unsigned long i;

	if (args->run)
		bench_reorder(bench, args);
	if (args->flags & BENCH_LOOK_UP)
		return bench_look_up(bench, args);
	if (args->flags & BENCH_MAP_RANGE)
		return bench_map_range(bench, args);

	if (args->flags & BENCH_SPAN_MAP)
		SPAN(2);
	start = get_cycles();
	for (i = 0; i < args->pages; i++)
		failed |= hmm_dma_map_pfn(bench->nic, &bench->map, i, &state) ==
			  DMA_MAPPING_ERROR;
	mapped = get_cycles();
	SPAN(0);
	if (!(args->flags & BENCH_KEEP))
		bench_unmap(bench, args->pages, false);
	bench_least(&args->unmap, get_cycles() - mapped);
	bench_least(&args->map, mapped - start);
	return failed ? -EIO : 0;
}

/* Faults every second page in, one PMD after the other as hmm_range_fault() does */
static int bench_home(struct bench *bench, struct hmm_bench *args)
{
	struct mm_struct *mm = bench->notifier.mm;
	unsigned long i, j, end, addr;
	struct vm_area_struct *vma;
	cycles_t start, all = 0;
	vm_fault_t ret = 0;

	for (i = 0; i < args->pages; i = end) {
		end = min(i + PTRS_PER_PTE, args->pages);
		mmu_interval_read_begin(&bench->notifier);
		mmap_read_lock(mm);
		vma = vma_lookup(mm, args->addr + (i << PAGE_SHIFT));
		if (!vma || vma->vm_end < args->addr + (end << PAGE_SHIFT)) {
			mmap_read_unlock(mm);
			return -EFAULT;
		}
		start = get_cycles();
		for (j = i + 1; j < end; j += 2) {
			addr = args->addr + (j << PAGE_SHIFT);
			ret |= handle_mm_fault(vma, addr, FAULT_FLAG_REMOTE,
					       NULL);
		}
		all += get_cycles() - start;
		mmap_read_unlock(mm);
	}
	bench_least(&args->all, all);
	return ret & VM_FAULT_ERROR ? -EFAULT : 0;
}

static int bench_round(struct bench *bench, struct hmm_bench *args)
{
	struct mm_struct *mm = bench->notifier.mm;
	struct hmm_range range = {
		.notifier = &bench->notifier,
		.start = args->addr,
		.end = args->addr + (args->pages << PAGE_SHIFT),
		.hmm_pfns = bench->map.pfn_list,
		.default_flags = args->flags & BENCH_FAULT ?
				 HMM_PFN_REQ_FAULT : 0,
	};
	cycles_t start, ticks, all = 0;
	int ret;

	if (args->flags & BENCH_HOME)
		return bench_home(bench, args);
	args->calls = 0;
#ifdef BENCH_P2P
	range.dma_dev = bench->nic;
	if (args->flags & BENCH_P2P_OK)
		range.default_flags |= HMM_PFN_REQ_TRY_P2P;
#elif defined(BENCH_CALLBACK)
	if (args->flags & BENCH_P2P_OK)
		range.default_flags |= HMM_PFN_ALLOW_P2P;
#endif
	for (;;) {
		range.notifier_seq = mmu_interval_read_begin(range.notifier);
		mmap_read_lock(mm);
		if (args->flags & BENCH_SPAN_FAULT)
			SPAN(1);
		start = get_cycles();
		ret = hmm_range_fault(&range);
		ticks = get_cycles() - start;
		if (args->flags & BENCH_SPAN_FAULT)
			SPAN(0);
		all += ticks;
		args->calls++;
		mmap_read_unlock(mm);
		if (ret == -EBUSY)
			continue;
		if (ret)
			return ret;

		mutex_lock(&bench->lock);
		if (!mmu_interval_read_retry(range.notifier,
					     range.notifier_seq))
			break;
		mutex_unlock(&bench->lock);
	}

	bench_least(&args->fault, ticks);
	bench_least(&args->all, all);
	bench_look(bench, args);
	if (args->flags & BENCH_MAP)
		ret = bench_map(bench, args);
	if (!ret && args->flags & BENCH_KEEP) {
		bench->kept = args->pages;
		bench->by_range = args->flags & BENCH_MAP_RANGE;
	}
	mutex_unlock(&bench->lock);
	return ret;
}

static int bench_run(struct bench *bench, struct hmm_bench *args)
{
	int ret;
	u32 i;

	ret = mmu_interval_notifier_insert(&bench->notifier, current->mm,
					   args->addr, args->pages << PAGE_SHIFT,
					   &bench_ops);
	if (ret)
		return ret;
	for (i = 0; !ret && i < args->rounds; i++)
		ret = bench_round(bench, args);
	if (ret || !(args->flags & BENCH_KEEP))
		mmu_interval_notifier_remove(&bench->notifier);
	return ret;
}

static void bench_free(struct bench *bench)
{
	if (bench->map.dma_entry_size)
		hmm_dma_map_free(bench->nic, &bench->map);
	else
		kvfree(bench->map.pfn_list);
	kvfree(bench->addrs);
	kfree(bench);
}

static struct bench *bench_new(const struct hmm_bench *args)
{
	struct bench *bench = kzalloc(sizeof(*bench), GFP_KERNEL);
	int ret = 0;

	if (!bench)
		return NULL;
	mutex_init(&bench->lock);
	bench->nic = &bench_nic->dev;
	bench->addrs = kvcalloc(args->pages, sizeof(*bench->addrs), GFP_KERNEL);
	if (args->flags & BENCH_MAP)
		ret = hmm_dma_map_alloc(bench->nic, &bench->map, args->pages,
					PAGE_SIZE);
	else
		bench->map.pfn_list = kvcalloc(args->pages, sizeof(long),
					       GFP_KERNEL);
	if (bench->addrs && !ret && bench->map.pfn_list)
		return bench;
	if (ret)
		memset(&bench->map, 0, sizeof(bench->map));
	bench_free(bench);
	return NULL;
}

static long bench_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct hmm_bench args;
	struct bench *bench;
	bool keep;
	int ret;

	if (cmd != HMM_BENCH)
		return -ENOTTY;
	if (copy_from_user(&args, (void __user *)arg, sizeof(args)))
		return -EFAULT;
	if (!args.pages || !PAGE_ALIGNED(args.addr) ||
	    (args.run && args.pages % args.run))
		return -EINVAL;
	keep = args.flags & BENCH_KEEP;
	if (keep && (file->private_data || args.rounds != 1 ||
		     !(args.flags & BENCH_MAP)))
		return -EINVAL;
	args.fault = 0;
	args.all = 0;
	args.calls = 0;
	args.map = 0;
	args.unmap = 0;

	bench = bench_new(&args);
	if (!bench)
		return -ENOMEM;
	ret = bench_run(bench, &args);
	if (keep && !ret)
		file->private_data = bench;
	else
		bench_free(bench);
	if (!ret && copy_to_user((void __user *)arg, &args, sizeof(args)))
		ret = -EFAULT;
	return ret;
}

/* misc_open() leaves the device there */
static int bench_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return 0;
}

static int bench_release(struct inode *inode, struct file *file)
{
	struct bench *bench = file->private_data;

	if (bench) {
		mmu_interval_notifier_remove(&bench->notifier);
		bench_unmap_kept(bench);
		bench_free(bench);
	}
	return 0;
}

static const struct file_operations bench_fops = {
	.owner = THIS_MODULE,
	.open = bench_open,
	.release = bench_release,
	.unlocked_ioctl = bench_ioctl,
};

static struct miscdevice bench_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hmm_bench",
	.fops = &bench_fops,
};

#ifdef BENCH_CALLBACK
/* In qemu/kernel/callback.patch */
extern unsigned long dmirror_peer_pfn, dmirror_peer_pages;

/* Makes test_hmm's pages addresses in the BAR of QEMU's ivshmem-plain */
static int bench_callback(void)
{
	struct pci_dev *gpu = pci_get_device(GPU_VENDOR, GPU_DEVICE, NULL);
	int ret;

	if (!gpu)
		return -ENODEV;
	ret = pci_p2pdma_add_resource(gpu, GPU_BAR, 0, 0);
	if (!ret) {
		dmirror_peer_pfn = PHYS_PFN(pci_resource_start(gpu, GPU_BAR));
		dmirror_peer_pages = pci_resource_len(gpu, GPU_BAR) >> PAGE_SHIFT;
	}
	pci_dev_put(gpu);
	return ret;
}
#else
static int bench_callback(void)
{
	return 0;
}
#endif

static int __init bench_init(void)
{
	int ret;

	bench_nic = pci_get_device(NIC_VENDOR, NIC_DEVICE, NULL);
	if (!bench_nic)
		return -ENODEV;
	ret = dma_set_mask_and_coherent(&bench_nic->dev, DMA_BIT_MASK(64));
	if (!ret)
		ret = bench_callback();
	if (!ret)
		ret = misc_register(&bench_misc);
	if (ret)
		pci_dev_put(bench_nic);
	return ret;
}
module_init(bench_init);

static void __exit bench_exit(void)
{
	misc_deregister(&bench_misc);
	pci_dev_put(bench_nic);
}
module_exit(bench_exit);

MODULE_DESCRIPTION("Counts what HMM costs");
MODULE_LICENSE("GPL");
