// SPDX-License-Identifier: GPL-2.0
/*
 * A client of nv-p2p, written as its documentation says: the callback waits for
 * the transfer in flight, and frees the mapping and the table, or leaves that to
 * whoever puts the pages.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nv-p2p.h"
#include "nv_p2p_client.h"

#define CHUNK		2048U
#define EDU_SRC		0x80
#define EDU_DST		0x88
#define EDU_COUNT	0x90
#define EDU_CMD		0x98
#define EDU_RUN		BIT(0)
#define EDU_TO_MEMORY	BIT(1)
#define EDU_BUFFER	0x40000

/* The device; one is enough */
static struct pci_dev *edu;
static void __iomem *regs;
static void *bounce;
static dma_addr_t bounce_addr;
static DEFINE_MUTEX(engine);

struct buffer {
	struct mutex lock;	/* over transfers; the callback takes it */
	struct nvidia_p2p_page_table *table;
	struct nvidia_p2p_dma_mapping *mapping;
	u64 addr, len;
	u32 page_size;
	int callbacks;
	bool free_later;
	bool revoked;		/* what is left is to be freed, and nothing else */
};

static const u32 page_sizes[] = { SZ_4K, SZ_64K, SZ_128K };

static void client_free(struct buffer *buffer)
{
	lockdep_assert_held(&buffer->lock);
	if (buffer->mapping)
		WARN_ON(nvidia_p2p_free_dma_mapping(buffer->mapping));
	buffer->mapping = NULL;
	WARN_ON(nvidia_p2p_free_page_table(buffer->table));
	buffer->table = NULL;
}

static void client_callback(void *data)
{
	struct nvidia_p2p_dma_mapping *mapping;
	struct buffer *buffer = data;

	mutex_lock(&buffer->lock);
	buffer->callbacks++;
	buffer->revoked = true;
	/* Too late, which is an error and no deadlock */
	WARN_ON(nvidia_p2p_put_pages(0, 0, buffer->addr, buffer->table) !=
		-EINVAL);
	WARN_ON(nvidia_p2p_dma_map_pages(edu, buffer->table, &mapping) !=
		-EINVAL);
	if (!buffer->free_later)
		client_free(buffer);
	mutex_unlock(&buffer->lock);
}

/* No lock: the callback may run before this returns */
static int client_get(struct buffer *buffer, struct client_get __user *arg)
{
	struct client_get get;
	int ret;

	if (copy_from_user(&get, arg, sizeof(get)))
		return -EFAULT;
	if (buffer->table)
		return -EBUSY;
	buffer->addr = get.addr;
	buffer->len = get.len;
	buffer->free_later = get.flags & CLIENT_FREE_LATER;
	buffer->revoked = false;
	ret = nvidia_p2p_get_pages(get.token, get.token, get.addr, get.len,
				   &buffer->table,
				   get.flags & CLIENT_NO_CALLBACK ?
					   NULL : client_callback,
				   buffer);
	if (ret)
		return ret;
	mutex_lock(&buffer->lock);
	if (buffer->table) {
		if (!NVIDIA_P2P_PAGE_TABLE_VERSION_COMPATIBLE(buffer->table))
			ret = -EPROTO;
		buffer->page_size = page_sizes[buffer->table->page_size];
		get.version = buffer->table->version;
		get.page_size = buffer->page_size;
		get.entries = buffer->table->entries;
	}
	mutex_unlock(&buffer->lock);
	return copy_to_user(arg, &get, sizeof(get)) ? -EFAULT : ret;
}

static int client_unmap(struct buffer *buffer)
{
	int ret = -ENOENT;

	mutex_lock(&buffer->lock);
	if (buffer->mapping) {
		ret = nvidia_p2p_dma_unmap_pages(edu, buffer->table,
						 buffer->mapping);
		buffer->mapping = NULL;
	}
	mutex_unlock(&buffer->lock);
	return ret;
}

/* No lock: it waits for the callback. Afterwards the buffer is nobody else's. */
static int client_put(struct buffer *buffer)
{
	struct nvidia_p2p_page_table *table;
	int ret = -ENOENT;

	client_unmap(buffer);
	mutex_lock(&buffer->lock);
	table = buffer->table;
	mutex_unlock(&buffer->lock);
	if (table) {
		ret = nvidia_p2p_put_pages(0, 0, buffer->addr, table);
		mutex_lock(&buffer->lock);
		if (!ret)
			buffer->table = NULL;
		else if (buffer->table)
			client_free(buffer);
		mutex_unlock(&buffer->lock);
	}
	return ret;
}

static int client_map(struct buffer *buffer, struct client_map __user *arg)
{
	struct nvidia_p2p_dma_mapping *mapping;
	struct client_map map = { };
	int ret;

	if (buffer->mapping)
		return -EBUSY;
	ret = nvidia_p2p_dma_map_pages(edu, buffer->table, &mapping);
	if (ret)
		return ret;
	mutex_lock(&buffer->lock);
	if (buffer->table && !buffer->revoked) {
		buffer->mapping = mapping;
		map.version = mapping->version;
		map.entries = mapping->entries;
		map.first = mapping->dma_addresses[0];
		if (!NVIDIA_P2P_DMA_MAPPING_VERSION_COMPATIBLE(mapping))
			ret = -EPROTO;
	} else {
		/* Revoked before we noted it; ours to free all the same. */
		WARN_ON(nvidia_p2p_free_dma_mapping(mapping));
	}
	mutex_unlock(&buffer->lock);
	return copy_to_user(arg, &map, sizeof(map)) ? -EFAULT : ret;
}

static int edu_run(u64 src, u64 dst, u32 len, u32 cmd)
{
	int i;

	writeq(src, regs + EDU_SRC);
	writeq(dst, regs + EDU_DST);
	writel(len, regs + EDU_COUNT);
	writel(cmd | EDU_RUN, regs + EDU_CMD);
	for (i = 0; i < 1000; i++) {
		msleep(20);
		if (!(readl(regs + EDU_CMD) & EDU_RUN))
			return 0;
	}
	return -EIO;
}

/* With the data in @bounce, if it is written */
static int client_edu(u64 addr, u32 len, bool write)
{
	int ret;

	if (write) {
		ret = edu_run(bounce_addr, EDU_BUFFER, len, 0);
		return ret ?: edu_run(EDU_BUFFER, addr, len, EDU_TO_MEMORY);
	}
	ret = edu_run(addr, EDU_BUFFER, len, 0);
	return ret ?: edu_run(EDU_BUFFER, bounce_addr, len, EDU_TO_MEMORY);
}

/*
 * The CPU, to @bounce. Memory reclaim may wait for the callback, and thus for its
 * lock: nothing is allocated under that.
 */
static int client_read(struct buffer *buffer, u64 index, u64 within, u32 len)
{
	void __iomem *vram;
	u64 phys = 0;
	int ret = -ENOENT;

	mutex_lock(&buffer->lock);
	if (buffer->table && !buffer->revoked)
		phys = buffer->table->pages[index]->physical_address;
	mutex_unlock(&buffer->lock);
	if (!phys)
		return ret;
	vram = ioremap(phys + within, len);
	if (!vram)
		return -ENOMEM;
	mutex_lock(&buffer->lock);
	if (buffer->table && !buffer->revoked) {
		memcpy_fromio(bounce, vram, len);
		ret = 0;
	}
	mutex_unlock(&buffer->lock);
	iounmap(vram);
	return ret;
}

static int client_transfer(struct buffer *buffer, bool dma,
			   struct client_transfer __user *arg)
{
	struct client_transfer t;
	u64 index, within;
	int ret = -ENOENT;

	if (copy_from_user(&t, arg, sizeof(t)))
		return -EFAULT;
	if (!buffer->page_size || !t.len || t.len > CHUNK ||
	    t.offset >= buffer->len || t.len > buffer->len - t.offset)
		return -EINVAL;
	index = t.offset / buffer->page_size;
	within = t.offset % buffer->page_size;
	if (within + t.len > buffer->page_size)
		return -EINVAL;

	mutex_lock(&engine);
	if (t.flags & CLIENT_WRITE &&
	    copy_from_user(bounce, u64_to_user_ptr(t.buf), t.len)) {
		mutex_unlock(&engine);
		return -EFAULT;
	}
	if (dma) {
		mutex_lock(&buffer->lock);
		if (buffer->mapping && !buffer->revoked)
			ret = client_edu(buffer->mapping->dma_addresses[index] +
					 within, t.len, t.flags & CLIENT_WRITE);
		mutex_unlock(&buffer->lock);
	} else {
		ret = client_read(buffer, index, within, t.len);
	}
	if (!ret && !(t.flags & CLIENT_WRITE) &&
	    copy_to_user(u64_to_user_ptr(t.buf), bounce, t.len))
		ret = -EFAULT;
	mutex_unlock(&engine);
	return ret;
}

static long client_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct buffer *buffer = file->private_data;
	void __user *p = (void __user *)arg;

	switch (cmd) {
	case CLIENT_GET:
		return client_get(buffer, p);
	case CLIENT_PUT:
		return client_put(buffer);
	case CLIENT_MAP:
		return client_map(buffer, p);
	case CLIENT_UNMAP:
		return client_unmap(buffer);
	case CLIENT_READ:
		return client_transfer(buffer, false, p);
	case CLIENT_DMA:
		return client_transfer(buffer, true, p);
	case CLIENT_CALLBACKS:
		return READ_ONCE(buffer->callbacks);
	}
	return -ENOTTY;
}

static int client_open(struct inode *inode, struct file *file)
{
	struct buffer *buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);

	if (!buffer)
		return -ENOMEM;
	mutex_init(&buffer->lock);
	file->private_data = buffer;
	return 0;
}

static int client_release(struct inode *inode, struct file *file)
{
	struct buffer *buffer = file->private_data;

	client_put(buffer);
	kfree(buffer);
	return 0;
}

static const struct file_operations client_fops = {
	.owner = THIS_MODULE,
	.open = client_open,
	.release = client_release,
	.unlocked_ioctl = client_ioctl,
};

static struct miscdevice client_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nv_p2p_client",
	.fops = &client_fops,
};

static int client_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int ret;

	if (edu)
		return -EBUSY;
	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	regs = pcim_iomap_region(pdev, 0, "nv_p2p_client");
	if (IS_ERR(regs))
		return PTR_ERR(regs);
	bounce = dmam_alloc_coherent(&pdev->dev, CHUNK, &bounce_addr,
				     GFP_KERNEL);
	if (!bounce)
		return -ENOMEM;
	pci_set_master(pdev);
	edu = pdev;
	ret = misc_register(&client_misc);
	if (ret)
		edu = NULL;
	return ret;
}

static void client_remove(struct pci_dev *pdev)
{
	misc_deregister(&client_misc);
	pci_clear_master(pdev);
	edu = NULL;
}

static const struct pci_device_id client_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};

static struct pci_driver client_driver = {
	.name = "nv_p2p_client",
	.id_table = client_ids,
	.probe = client_probe,
	.remove = client_remove,
	.driver.suppress_bind_attrs = true,
};
module_pci_driver(client_driver);

MODULE_DESCRIPTION("Test client of nv-p2p (QEMU edu)");
MODULE_LICENSE("GPL");
