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

struct bench {
	struct mmu_interval_notifier notifier;
	struct mutex lock;
	struct hmm_dma_map map;
	dma_addr_t *addrs;
	struct device *nic;
};

static struct pci_dev *bench_nic;

static bool bench_invalidate(struct mmu_interval_notifier *notifier,
			     const struct mmu_notifier_range *range,
			     unsigned long seq)
{
	struct bench *bench = container_of(notifier, struct bench, notifier);

	if (!mmu_notifier_range_blockable(range))
		return false;
	/* Nothing is mapped, except under the lock */
	mutex_lock(&bench->lock);
	mmu_interval_set_seq(notifier, seq);
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
#ifdef BENCH_P2P
		if (pfns[i] & HMM_PFN_P2P_ALIAS)
			args->alias++;
		else
#endif
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

	start = get_cycles();
	done = hmm_dma_map_range(bench->nic, &bench->map, 0, args->pages,
				 &state, bench->addrs);
	mapped = get_cycles();
	hmm_dma_unmap_range(bench->nic, &bench->map, 0, args->pages);
	bench_least(&args->unmap, get_cycles() - mapped);
	bench_least(&args->map, mapped - start);
	return done == args->pages ? 0 : -EIO;
}
#else
static int bench_map_range(struct bench *bench, struct hmm_bench *args)
{
	return -EOPNOTSUPP;
}
#endif

static int bench_map(struct bench *bench, struct hmm_bench *args)
{
	struct pci_p2pdma_map_state state = {};
	cycles_t start, mapped;
	bool failed = false;
	unsigned long i;

	if (args->run)
		bench_reorder(bench, args);
	if (args->flags & BENCH_MAP_RANGE)
		return bench_map_range(bench, args);

	start = get_cycles();
	for (i = 0; i < args->pages; i++)
		failed |= hmm_dma_map_pfn(bench->nic, &bench->map, i, &state) ==
			  DMA_MAPPING_ERROR;
	mapped = get_cycles();
	for (i = 0; i < args->pages; i++)
		hmm_dma_unmap_pfn(bench->nic, &bench->map, i);
	bench_least(&args->unmap, get_cycles() - mapped);
	bench_least(&args->map, mapped - start);
	return failed ? -EIO : 0;
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

#ifdef BENCH_P2P
	range.dma_dev = bench->nic;
	if (args->flags & BENCH_P2P_OK)
		range.default_flags |= HMM_PFN_REQ_TRY_P2P;
#endif
	for (;;) {
		range.notifier_seq = mmu_interval_read_begin(range.notifier);
		mmap_read_lock(mm);
		start = get_cycles();
		ret = hmm_range_fault(&range);
		ticks = get_cycles() - start;
		all += ticks;
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
	mmu_interval_notifier_remove(&bench->notifier);
	return ret;
}

static long bench_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct hmm_bench args;
	struct bench *bench;
	int ret;

	if (cmd != HMM_BENCH)
		return -ENOTTY;
	if (copy_from_user(&args, (void __user *)arg, sizeof(args)))
		return -EFAULT;
	if (!args.pages || !PAGE_ALIGNED(args.addr) ||
	    (args.run && args.pages % args.run))
		return -EINVAL;
	args.fault = 0;
	args.all = 0;
	args.map = 0;
	args.unmap = 0;

	bench = kzalloc(sizeof(*bench), GFP_KERNEL);
	if (!bench)
		return -ENOMEM;
	mutex_init(&bench->lock);
	bench->nic = &bench_nic->dev;
	bench->addrs = kvcalloc(args.pages, sizeof(*bench->addrs), GFP_KERNEL);
	if (!bench->addrs) {
		kfree(bench);
		return -ENOMEM;
	}

	if (args.flags & BENCH_MAP) {
		ret = hmm_dma_map_alloc(bench->nic, &bench->map, args.pages,
					PAGE_SIZE);
	} else {
		bench->map.pfn_list = kvcalloc(args.pages, sizeof(long),
					       GFP_KERNEL);
		ret = bench->map.pfn_list ? 0 : -ENOMEM;
	}
	if (!ret) {
		ret = bench_run(bench, &args);
		if (args.flags & BENCH_MAP)
			hmm_dma_map_free(bench->nic, &bench->map);
		else
			kvfree(bench->map.pfn_list);
	}
	kvfree(bench->addrs);
	kfree(bench);
	if (!ret && copy_to_user((void __user *)arg, &args, sizeof(args)))
		ret = -EFAULT;
	return ret;
}

static const struct file_operations bench_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = bench_ioctl,
};

static struct miscdevice bench_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hmm_bench",
	.fops = &bench_fops,
};

static int __init bench_init(void)
{
	int ret;

	bench_nic = pci_get_device(NIC_VENDOR, NIC_DEVICE, NULL);
	if (!bench_nic)
		return -ENODEV;
	ret = dma_set_mask_and_coherent(&bench_nic->dev, DMA_BIT_MASK(64));
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
