// SPDX-License-Identifier: GPL-2.0
/*
 * Test device that refuses to be suspended: a suspend of the machine ends there,
 * and what was suspended before is resumed.
 *
 * It comes right after a PCI device, before all others, as the PM core suspends
 * consumers before their suppliers. So that device's driver can be tested in a
 * virtual machine that does not survive a suspend, because it has its files by
 * 9p, for instance. /sys/power/pm_async must be 0: otherwise devices are suspended
 * at the same time.
 */
#include <linux/device.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>

#define NAME	"p2ptest_no_suspend"

static char *device;
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "PCI device that is suspended before, e.g. 0000:01:00.0");

static struct device *consumer;
static struct platform_device *supplier;

static int no_suspend(struct device *dev)
{
	return -EBUSY;
}

static const struct dev_pm_ops no_suspend_pm_ops = {
	.suspend = no_suspend,
};

static struct platform_driver no_suspend_driver = {
	.driver = {
		.name = NAME,
		.pm = &no_suspend_pm_ops,
	},
};

static int __init no_suspend_init(void)
{
	int ret;

	consumer = bus_find_device_by_name(&pci_bus_type, NULL, device ?: "");
	if (!consumer)
		return -ENODEV;

	ret = platform_driver_register(&no_suspend_driver);
	if (ret)
		goto out_put;

	supplier = platform_device_register_simple(NAME, PLATFORM_DEVID_NONE,
						   NULL, 0);
	if (IS_ERR(supplier)) {
		ret = PTR_ERR(supplier);
		goto out_driver;
	}

	if (!device_link_add(consumer, &supplier->dev, DL_FLAG_STATELESS)) {
		ret = -EINVAL;
		goto out_device;
	}
	return 0;

out_device:
	platform_device_unregister(supplier);
out_driver:
	platform_driver_unregister(&no_suspend_driver);
out_put:
	put_device(consumer);
	return ret;
}

static void __exit no_suspend_exit(void)
{
	/* The link is gone already if the consumer is. */
	device_link_remove(consumer, &supplier->dev);
	platform_device_unregister(supplier);
	platform_driver_unregister(&no_suspend_driver);
	put_device(consumer);
}

module_init(no_suspend_init);
module_exit(no_suspend_exit);
MODULE_DESCRIPTION("Test device that refuses to be suspended");
MODULE_LICENSE("GPL");
