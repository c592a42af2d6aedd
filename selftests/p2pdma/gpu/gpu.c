// SPDX-License-Identifier: GPL-2.0
/*
 * See gpu.h
 */
#include "gpu.h"
#include "../p2p_drm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const struct gpu_ops *const gpu_drivers[] = {
	&p2ptest_gpu_ops, &nouveau_gpu_ops, &amdkfd_gpu_ops, &xe_gpu_ops, NULL
};

int gpu_absent(struct gpu *gpu, const char *why)
{
	snprintf(gpu->why, sizeof(gpu->why), "%s: %s", gpu->ops->driver, why);
	return -ENODEV;
}

int gpu_failed(struct gpu *gpu, int ret, const char *what)
{
	snprintf(gpu->why, sizeof(gpu->why), "%s: %s: %s", gpu->ops->driver,
		 what, strerror(-ret));
	return ret;
}

int gpu_not_opened(struct gpu *gpu, int ret, const char *path)
{
	char why[64];

	if (ret != -ENOENT && ret != -ENXIO && ret != -ENODEV)
		return gpu_failed(gpu, ret, path);
	snprintf(why, sizeof(why), "no %s", path);
	return gpu_absent(gpu, why);
}

int gpu_ioctl(struct gpu *gpu, int fd, unsigned long cmd, void *arg,
	      const char *what)
{
	int ret = p2p_ioctl(fd, cmd, arg);

	return ret ? gpu_failed(gpu, ret, what) : 0;
}

int gpu_open_render(struct gpu *gpu, const char *pci_name)
{
	int fd = p2p_render_open(gpu->ops->driver, pci_name);

	if (fd == -ENODEV)
		return gpu_absent(gpu, "no render node of its own");
	if (fd < 0)
		return gpu_failed(gpu, fd, "a render node cannot be opened");
	gpu->fd = fd;
	return 0;
}

static int open_one(struct gpu *gpu, const struct gpu_ops *ops,
		    const char *pci_name)
{
	int ret;

	memset(gpu, 0, sizeof(*gpu));
	gpu->ops = ops;
	gpu->fd = -1;
	ret = ops->open(gpu, pci_name);
	if (ret)
		gpu->ops = NULL;
	return ret;
}

/* Why there is none is what each of them says */
static int open_first(struct gpu *gpu)
{
	char all[sizeof(gpu->why)] = "";
	size_t i, len = 0;
	int ret;

	for (i = 0; gpu_drivers[i]; i++) {
		ret = open_one(gpu, gpu_drivers[i], NULL);
		if (ret != -ENODEV)
			return ret;
		len += snprintf(all + len, sizeof(all) - len, "%s%s",
				i ? "; " : "", gpu->why);
		if (len >= sizeof(all))
			len = sizeof(all) - 1;
	}
	memcpy(gpu->why, all, sizeof(all));
	return -ENODEV;
}

int gpu_open(struct gpu *gpu, const char *name)
{
	const char *at;
	size_t i, len;

	if (!name || !*name)
		return open_first(gpu);
	at = strchr(name, '@');
	len = at ? (size_t)(at - name) : strlen(name);
	for (i = 0; gpu_drivers[i]; i++) {
		if (strlen(gpu_drivers[i]->driver) == len &&
		    !strncmp(name, gpu_drivers[i]->driver, len))
			return open_one(gpu, gpu_drivers[i],
					at ? at + 1 : NULL);
	}
	memset(gpu, 0, sizeof(*gpu));
	gpu->fd = -1;
	snprintf(gpu->why, sizeof(gpu->why), "there is no plug-in \"%s\"", name);
	return -EINVAL;
}

void gpu_close(struct gpu *gpu)
{
	if (gpu->ops)
		gpu->ops->close(gpu);
	gpu->ops = NULL;
}

int gpu_move(struct gpu *gpu, void *addr, size_t len)
{
	return gpu->ops->to_gpu(gpu, addr, len);
}

long gpu_resident(struct gpu *gpu, const void *addr, size_t len)
{
	long ret = gpu->ops->resident ? gpu->ops->resident(gpu, addr, len) :
					p2p_device_private(addr, len);

	return ret < 0 ? gpu_failed(gpu, ret, "where pages are") : ret;
}
