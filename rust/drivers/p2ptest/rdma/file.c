// SPDX-License-Identifier: GPL-2.0
/*
 * The file /dev/p2ptest_rdma<N> and its calls, see
 * include/uapi/linux/p2ptest_rdma.h.
 */
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "rdma.h"

#define MAX_MRS		1024
#define MAX_HOLD_MS	1000

static int rdma_open(struct inode *inode, struct file *file)
{
	struct p2ptest_rdma *dev = container_of(file->private_data,
						struct p2ptest_rdma, misc);

	get_device(&dev->ibdev.dev);
	file->private_data = dev;
	return nonseekable_open(inode, file);
}

/* End the regions of a file, or all of them. */
void p2ptest_rdma_end_mrs(struct p2ptest_rdma *dev, struct file *file)
{
	struct rdma_mr *mr;
	unsigned long handle;

	/* The lock keeps regions of other files while this looks at them. */
	xa_lock(&dev->mrs);
	xa_for_each(&dev->mrs, handle, mr) {
		if (file && mr->file != file)
			continue;
		__xa_erase(&dev->mrs, handle);
		xa_unlock(&dev->mrs);
		rdma_mr_put(mr);
		xa_lock(&dev->mrs);
	}
	xa_unlock(&dev->mrs);
}

static int rdma_release(struct inode *inode, struct file *file)
{
	struct p2ptest_rdma *dev = file->private_data;

	/* If the device is unbound, so are the regions. */
	down_read(&dev->unbind);
	if (!dev->unbound)
		p2ptest_rdma_end_mrs(dev, file);
	up_read(&dev->unbind);
	put_device(&dev->ibdev.dev);
	return 0;
}

/* A region of this file, of which the caller gets a reference. */
static struct rdma_mr *rdma_mr_get(struct file *file, u32 handle)
{
	struct p2ptest_rdma *dev = file->private_data;
	struct rdma_mr *mr;

	xa_lock(&dev->mrs);
	mr = xa_load(&dev->mrs, handle);
	if (mr && mr->file == file)
		kref_get(&mr->kref);
	else
		mr = ERR_PTR(-ENOENT);
	xa_unlock(&dev->mrs);

	if (!IS_ERR(mr) && mr->mm != current->mm) {
		rdma_mr_put(mr);
		mr = ERR_PTR(-EPERM);
	}
	return mr;
}

/* Is the range inside of [@start, @end)? */
static bool range_inside(u64 addr, u64 len, unsigned long start,
			 unsigned long end)
{
	u64 last;

	return len && !check_add_overflow(addr, len, &last) && addr >= start &&
	       last <= end;
}

static long rdma_reg(struct file *file, void __user *uarg)
{
	struct p2ptest_rdma *dev = file->private_data;
	struct p2ptest_rdma_reg arg;
	struct rdma_mr *mr;
	u32 handle;
	int ret;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	if (arg.flags & ~(P2PTEST_RDMA_MR_WRITE | P2PTEST_RDMA_MR_ODP |
			  P2PTEST_RDMA_MR_ATOMIC | P2PTEST_RDMA_MR_IMPLICIT |
			  P2PTEST_RDMA_MR_WINDOWS | P2PTEST_RDMA_MR_HUGETLB))
		return -EINVAL;

	mr = rdma_mr_create(dev, file, arg.addr, arg.len, arg.flags);
	if (IS_ERR(mr))
		return PTR_ERR(mr);

	/* Another thread may guess the handle and end it at once. */
	ret = xa_alloc(&dev->mrs, &handle, mr, XA_LIMIT(1, MAX_MRS),
		       GFP_KERNEL);
	if (ret) {
		rdma_mr_put(mr);
		return ret == -EBUSY ? -ENOSPC : ret;
	}

	arg.handle = handle;
	/* If the caller does not get the handle, the file ends the region. */
	return copy_to_user(uarg, &arg, sizeof(arg)) ? -EFAULT : 0;
}

static long rdma_dereg(struct file *file, void __user *uarg)
{
	struct p2ptest_rdma *dev = file->private_data;
	struct p2ptest_rdma_dereg arg;
	struct rdma_mr *mr;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	if (arg.pad)
		return -EINVAL;
	mr = rdma_mr_get(file, arg.handle);
	if (IS_ERR(mr))
		return PTR_ERR(mr);

	/* Only one of two callers ends it. */
	if (xa_cmpxchg(&dev->mrs, arg.handle, mr, NULL, GFP_KERNEL) == mr)
		rdma_mr_put(mr);
	rdma_mr_put(mr);
	return 0;
}

static long rdma_rereg(struct file *file, void __user *uarg)
{
	struct p2ptest_rdma_rereg arg;
	struct rdma_mr *mr;
	int ret;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	if (arg.flags & ~(P2PTEST_RDMA_MR_ATOMIC | P2PTEST_RDMA_MR_WINDOWS))
		return -EINVAL;
	mr = rdma_mr_get(file, arg.handle);
	if (IS_ERR(mr))
		return PTR_ERR(mr);

	ret = rdma_mr_rereg(mr, arg.flags);
	rdma_mr_put(mr);
	return ret;
}

static int rdma_xfer_run(struct rdma_mr *mr, struct p2ptest_rdma_xfer *arg,
			 void *data)
{
	const bool write = arg->flags & P2PTEST_RDMA_XFER_WRITE;
	void __user *buf = u64_to_user_ptr(arg->buf);
	unsigned long addr;
	size_t len;
	int ret;

	while (arg->done < arg->len) {
		if (READ_ONCE(mr->dev->stopping))
			return -ENODEV;
		if (signal_pending(current))
			return -ERESTARTSYS;

		addr = arg->addr + arg->done;
		len = min3(arg->len - arg->done, PAGE_SIZE - offset_in_page(addr),
			   (u64)mr->dev->edu.max_transfer);
		if (write && copy_from_user(data, buf + arg->done, len))
			return -EFAULT;
		ret = rdma_mr_copy(mr, addr, arg->addr + arg->len, data, len,
				   write, &arg->faults);
		if (ret)
			return ret;
		if (!write && copy_to_user(buf + arg->done, data, len))
			return -EFAULT;
		arg->done += len;
	}
	return 0;
}

static long rdma_xfer(struct file *file, void __user *uarg)
{
	struct p2ptest_rdma_xfer arg;
	struct rdma_mr *mr;
	void *data;
	int ret;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	if (arg.flags & ~P2PTEST_RDMA_XFER_WRITE || arg.pad)
		return -EINVAL;
	mr = rdma_mr_get(file, arg.handle);
	if (IS_ERR(mr))
		return PTR_ERR(mr);

	ret = -EINVAL;
	if (!range_inside(arg.addr, arg.len, mr->addr, mr->addr + mr->len))
		goto out;
	ret = -EPERM;
	if (arg.flags & P2PTEST_RDMA_XFER_WRITE &&
	    !(mr->flags & P2PTEST_RDMA_MR_WRITE))
		goto out;
	ret = -ENOMEM;
	data = kmalloc(EDU_BUFFER_SIZE, GFP_KERNEL);
	if (!data)
		goto out;

	arg.done = 0;
	arg.faults = 0;
	ret = rdma_xfer_run(mr, &arg, data);
	kfree(data);
	if (copy_to_user(uarg, &arg, sizeof(arg)))
		ret = -EFAULT;
out:
	rdma_mr_put(mr);
	return ret;
}

static long rdma_fault(struct file *file, void __user *uarg)
{
	struct p2ptest_rdma_fault arg;
	struct rdma_mr *mr;
	int ret;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	if (arg.flags &
	    ~(P2PTEST_RDMA_FAULT_WRITE | P2PTEST_RDMA_FAULT_SNAPSHOT))
		return -EINVAL;
	mr = rdma_mr_get(file, arg.handle);
	if (IS_ERR(mr))
		return PTR_ERR(mr);

	if (!range_inside(arg.addr, arg.len, mr->addr, mr->addr + mr->len))
		ret = -EINVAL;
	else if (arg.flags & P2PTEST_RDMA_FAULT_WRITE &&
		 !(mr->flags & P2PTEST_RDMA_MR_WRITE))
		ret = -EPERM;
	else
		ret = rdma_mr_fault(mr, arg.addr, arg.len,
				    arg.flags & P2PTEST_RDMA_FAULT_WRITE,
				    !(arg.flags & P2PTEST_RDMA_FAULT_SNAPSHOT));
	rdma_mr_put(mr);
	return ret;
}

/* Describe pages from @addr on: as many as fit, and as the part has. */
static unsigned long rdma_describe(struct rdma_mr *mr, unsigned long addr,
				   unsigned long nr, unsigned int hold,
				   struct p2ptest_rdma_page *pages, u64 *mapped)
{
	struct rdma_part *part = rdma_mr_part(mr, addr, false);
	unsigned long i;

	*mapped = 0;
	if (!part) {
		*pages = (struct p2ptest_rdma_page){};
		return 1;
	}

	nr = min(nr, (rdma_part_end(part) - addr) >> PAGE_SHIFT);
	if (part->odp) {
		mutex_lock(&part->odp->umem_mutex);
		if (hold)
			msleep_interruptible(hold);
		*mapped = part->odp->npages;
	} else {
		*mapped = part->nr;
	}
	for (i = 0; i < nr; i++)
		rdma_part_describe(part, addr + (i << PAGE_SHIFT), &pages[i]);
	if (part->odp)
		mutex_unlock(&part->odp->umem_mutex);
	return nr;
}

static int rdma_query_run(struct rdma_mr *mr, struct p2ptest_rdma_query *arg,
			  struct p2ptest_rdma_page *pages)
{
	const unsigned long end = PAGE_ALIGN(arg->addr + arg->len);
	unsigned long addr = arg->addr & PAGE_MASK;
	void __user *to = u64_to_user_ptr(arg->pages);
	unsigned int hold = arg->hold;
	unsigned long nr;
	u64 mapped;

	for (; addr < end; addr += nr << PAGE_SHIFT) {
		if (signal_pending(current))
			return -ERESTARTSYS;
		/* The lock must not be held while user memory is accessed. */
		nr = min((end - addr) >> PAGE_SHIFT,
			 PAGE_SIZE / sizeof(*pages));
		nr = rdma_describe(mr, addr, nr, hold, pages, &mapped);
		hold = 0;
		if (addr <= arg->addr)
			arg->mapped = mapped;
		if (copy_to_user(to, pages, nr * sizeof(*pages)))
			return -EFAULT;
		to += nr * sizeof(*pages);
	}
	return 0;
}

static long rdma_query(struct file *file, void __user *uarg)
{
	struct p2ptest_rdma_query arg;
	struct p2ptest_rdma_page *pages;
	struct rdma_mr *mr;
	int ret;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	if (arg.hold > MAX_HOLD_MS)
		return -EINVAL;
	mr = rdma_mr_get(file, arg.handle);
	if (IS_ERR(mr))
		return PTR_ERR(mr);

	ret = -EINVAL;
	if (arg.hold && !(mr->flags & P2PTEST_RDMA_MR_ODP))
		goto out;
	if (!range_inside(arg.addr, arg.len, mr->addr & PAGE_MASK,
			  PAGE_ALIGN(mr->addr + mr->len)))
		goto out;
	ret = -ENOMEM;
	pages = kmalloc(PAGE_SIZE, GFP_KERNEL);
	if (!pages)
		goto out;

	ret = rdma_query_run(mr, &arg, pages);
	kfree(pages);
	if (!ret && copy_to_user(uarg, &arg, sizeof(arg)))
		ret = -EFAULT;
out:
	rdma_mr_put(mr);
	return ret;
}

static long rdma_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct p2ptest_rdma *dev = file->private_data;
	long (*call)(struct file *file, void __user *uarg);
	long ret;

	switch (cmd) {
	case P2PTEST_RDMA_REG:
		call = rdma_reg;
		break;
	case P2PTEST_RDMA_DEREG:
		call = rdma_dereg;
		break;
	case P2PTEST_RDMA_XFER:
		call = rdma_xfer;
		break;
	case P2PTEST_RDMA_FAULT:
		call = rdma_fault;
		break;
	case P2PTEST_RDMA_QUERY:
		call = rdma_query;
		break;
	case P2PTEST_RDMA_REREG:
		call = rdma_rereg;
		break;
	default:
		return -ENOTTY;
	}

	ret = down_read_interruptible(&dev->unbind);
	if (ret)
		return ret;
	ret = dev->unbound ? -ENODEV : call(file, (void __user *)arg);
	up_read(&dev->unbind);
	return ret;
}

const struct file_operations p2ptest_rdma_fops = {
	.owner		= THIS_MODULE,
	.open		= rdma_open,
	.release	= rdma_release,
	.unlocked_ioctl	= rdma_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
};
