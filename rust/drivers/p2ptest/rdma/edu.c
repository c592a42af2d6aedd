// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU's edu device: registers and DMA engine.
 *
 * The engine copies between memory and a buffer inside of the device, one
 * transfer at a time, each taking 100 ms. The CPU cannot see the buffer. So to
 * get the bytes in or out, there is another transfer, to or from a page that
 * the driver owns.
 *
 * Reference: https://www.qemu.org/docs/master/specs/edu.html
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iopoll.h>

#include "rdma.h"

#define EDU_ID		0x00
#define   EDU_ID_MAGIC	0xed
#define EDU_DMA_SRC	0x80
#define EDU_DMA_DST	0x88
#define EDU_DMA_COUNT	0x90
#define EDU_DMA_CMD	0x98
/* Written 1 to start; reads 0 when complete */
#define   EDU_CMD_RUN		BIT(0)
/* Memory is the destination and the buffer the source */
#define   EDU_CMD_TO_MEMORY	BIT(1)
#define EDU_END		0xa0

/* The device's own address of its buffer */
#define EDU_BUFFER	0x40000

#define EDU_TRANSFER_US	(100 * USEC_PER_MSEC)
/* When to look again whether a transfer that takes longer is complete */
#define EDU_POLL_US	(5 * USEC_PER_MSEC)
/* When the device is given up */
#define EDU_TIMEOUT_US	(5 * USEC_PER_SEC)

static bool edu_answers(struct edu *edu)
{
	return (readl(edu->regs + EDU_ID) & 0xff) == EDU_ID_MAGIC;
}

/*
 * The registers of a device that does not answer are no evidence: they read as
 * ones, and with QEMU as zeros.
 */
static int edu_wait(struct edu *edu)
{
	u32 cmd;

	if (readl_poll_timeout(edu->regs + EDU_DMA_CMD, cmd,
			       !(cmd & EDU_CMD_RUN), EDU_POLL_US,
			       EDU_TIMEOUT_US))
		return -EIO;
	return edu_answers(edu) ? 0 : -EIO;
}

/*
 * Take the bus away from the device, so that a pending transfer cannot reach
 * memory which may have another use soon.
 */
static void edu_give_up(struct edu *edu)
{
	pci_err(edu->pdev, "DMA does not complete, giving up\n");
	edu->failed = true;
	pci_clear_master(edu->pdev);
}

static int edu_transfer(struct edu *edu, u64 src, u64 dst, size_t len, u32 dir)
{
	int ret;

	lockdep_assert_held(&edu->lock);

	if (edu->failed)
		return -EIO;

	writeq(src, edu->regs + EDU_DMA_SRC);
	writeq(dst, edu->regs + EDU_DMA_DST);
	writel(len, edu->regs + EDU_DMA_COUNT);
	writel(EDU_CMD_RUN | dir, edu->regs + EDU_DMA_CMD);

	fsleep(EDU_TRANSFER_US);
	ret = edu_wait(edu);
	if (ret)
		edu_give_up(edu);
	return ret;
}

/* Memory at @addr to @buf. */
int edu_read(struct edu *edu, dma_addr_t addr, void *buf, size_t len)
{
	int ret;

	ret = edu_transfer(edu, addr, EDU_BUFFER, len, 0);
	if (!ret)
		ret = edu_transfer(edu, EDU_BUFFER, edu->page_dma, len,
				   EDU_CMD_TO_MEMORY);
	if (!ret)
		memcpy(buf, edu->page, len);
	return ret;
}

/* @buf to memory at @addr. */
int edu_write(struct edu *edu, dma_addr_t addr, const void *buf, size_t len)
{
	int ret;

	memcpy(edu->page, buf, len);
	ret = edu_transfer(edu, edu->page_dma, EDU_BUFFER, len, 0);
	if (!ret)
		ret = edu_transfer(edu, EDU_BUFFER, addr, len,
				   EDU_CMD_TO_MEMORY);
	return ret;
}

int edu_init(struct edu *edu, struct pci_dev *pdev, size_t max_transfer)
{
	if (!max_transfer || max_transfer > EDU_BUFFER_SIZE)
		return dev_err_probe(&pdev->dev, -EINVAL,
				     "max_transfer is not in 1..=%d\n",
				     EDU_BUFFER_SIZE);
	edu->max_transfer = max_transfer;
	edu->pdev = pdev;
	/* Not devm_: @edu may go before the resources of the device do. */
	mutex_init(&edu->lock);

	edu->regs = pcim_iomap_region(pdev, 0, KBUILD_MODNAME);
	if (IS_ERR(edu->regs))
		return PTR_ERR(edu->regs);
	if (pci_resource_len(pdev, 0) < EDU_END || !edu_answers(edu))
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "not an edu device\n");

	edu->page = dmam_alloc_coherent(&pdev->dev, EDU_BUFFER_SIZE,
					&edu->page_dma, GFP_KERNEL);
	if (!edu->page)
		return -ENOMEM;

	/* A previous driver may have given it up with a transfer pending. */
	return edu_wait(edu);
}
