// SPDX-License-Identifier: GPL-2.0
/*
 * Test RDMA device: QEMU's edu device as a PCI driver that registers with the
 * RDMA core.
 *
 * It exists for its memory regions, which user space reaches by a file of its
 * own: it has neither verbs nor queues.
 */
#include <linux/dma-mapping.h>
#include <linux/idr.h>
#include <linux/module.h>

#include "rdma.h"

static unsigned int max_transfer = 2048;
module_param(max_transfer, uint, 0444);
MODULE_PARM_DESC(max_transfer,
		 "Bytes that it transfers at a time, up to 4096 (QEMU before 10.0: 2048)");

static DEFINE_IDA(p2ptest_rdma_ids);

static int p2ptest_rdma_query_device(struct ib_device *ibdev,
				     struct ib_device_attr *attr,
				     struct ib_udata *udata)
{
	*attr = (struct ib_device_attr){
		.kernel_cap_flags = IBK_ON_DEMAND_PAGING,
	};
	return 0;
}

static int p2ptest_rdma_query_port(struct ib_device *ibdev, u32 port,
				   struct ib_port_attr *attr)
{
	*attr = (struct ib_port_attr){
		.state = IB_PORT_DOWN,
		.phys_state = IB_PORT_PHYS_STATE_DISABLED,
		.max_mtu = IB_MTU_4096,
		.active_mtu = IB_MTU_4096,
	};
	return 0;
}

static int p2ptest_rdma_port_immutable(struct ib_device *ibdev, u32 port,
				       struct ib_port_immutable *immutable)
{
	return 0;
}

static const struct ib_device_ops p2ptest_rdma_ops = {
	.owner			= THIS_MODULE,
	.driver_id		= RDMA_DRIVER_UNKNOWN,

	.get_port_immutable	= p2ptest_rdma_port_immutable,
	.query_device		= p2ptest_rdma_query_device,
	.query_port		= p2ptest_rdma_query_port,
};

static int p2ptest_rdma_register_misc(struct p2ptest_rdma *dev)
{
	int id = ida_alloc(&p2ptest_rdma_ids, GFP_KERNEL);
	int ret;

	if (id < 0)
		return id;

	snprintf(dev->name, sizeof(dev->name), "p2ptest_rdma%d", id);
	dev->misc.minor = MISC_DYNAMIC_MINOR;
	dev->misc.name = dev->name;
	dev->misc.fops = &p2ptest_rdma_fops;
	dev->misc.parent = &dev->edu.pdev->dev;
	ret = misc_register(&dev->misc);
	if (ret)
		ida_free(&p2ptest_rdma_ids, id);
	else
		dev->id = id;
	return ret;
}

static int p2ptest_rdma_probe(struct pci_dev *pdev,
			      const struct pci_device_id *id)
{
	struct p2ptest_rdma *dev;
	int ret;

	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;

	dev = ib_alloc_device(p2ptest_rdma, ibdev);
	if (!dev)
		return -ENOMEM;
	init_rwsem(&dev->unbind);
	xa_init_flags(&dev->mrs, XA_FLAGS_ALLOC1);

	ret = edu_init(&dev->edu, pdev, max_transfer);
	if (ret)
		goto err_dealloc;
	/* Not before a transfer of a previous driver has come to nothing. */
	pci_set_master(pdev);

	dev->ibdev.node_type = RDMA_NODE_UNSPECIFIED;
	dev->ibdev.phys_port_cnt = 1;
	dev->ibdev.num_comp_vectors = 1;
	dev->ibdev.dev.parent = &pdev->dev;
	ib_set_device_ops(&dev->ibdev, &p2ptest_rdma_ops);
	ret = ib_register_device(&dev->ibdev, "p2ptest%d", &pdev->dev);
	if (ret)
		goto err_dealloc;

	ret = p2ptest_rdma_register_misc(dev);
	if (ret)
		goto err_unregister;

	pci_set_drvdata(pdev, dev);
	return 0;

err_unregister:
	ib_unregister_device(&dev->ibdev);
err_dealloc:
	ib_dealloc_device(&dev->ibdev);
	return ret;
}

static void p2ptest_rdma_remove(struct pci_dev *pdev)
{
	struct p2ptest_rdma *dev = pci_get_drvdata(pdev);

	misc_deregister(&dev->misc);

	/* Calls come to an end now, and no DMA is left after the last region. */
	WRITE_ONCE(dev->stopping, true);
	down_write(&dev->unbind);
	p2ptest_rdma_end_mrs(dev, NULL);
	dev->unbound = true;
	up_write(&dev->unbind);

	ida_free(&p2ptest_rdma_ids, dev->id);
	ib_unregister_device(&dev->ibdev);
	/* Who has the file open still has a reference. */
	ib_dealloc_device(&dev->ibdev);
}

static const struct pci_device_id p2ptest_rdma_table[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};
MODULE_DEVICE_TABLE(pci, p2ptest_rdma_table);

static struct pci_driver p2ptest_rdma_driver = {
	.name		= "p2ptest_rdma",
	.id_table	= p2ptest_rdma_table,
	.probe		= p2ptest_rdma_probe,
	.remove		= p2ptest_rdma_remove,
};
module_pci_driver(p2ptest_rdma_driver);

MODULE_DESCRIPTION("Peer-to-peer DMA test RDMA device");
MODULE_LICENSE("GPL");
