// SPDX-License-Identifier: GPL-2.0
/*
 * See p2p_drm.h
 */
#include "p2p_drm.h"
#include "p2ptest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <drm/drm.h>

static bool is_driver(int fd, const char *driver)
{
	char name[16] = "";
	struct drm_version version = {
		.name = name,
		.name_len = sizeof(name) - 1,
	};

	return !p2p_ioctl(fd, DRM_IOCTL_VERSION, &version) &&
	       !strcmp(name, driver);
}

static bool is_device(int node, const char *pci_name)
{
	char path[64], want[64], text[512] = "\n";
	int fd;

	snprintf(path, sizeof(path), "/sys/class/drm/renderD%d/device/uevent",
		 node);
	snprintf(want, sizeof(want), "\nPCI_SLOT_NAME=%s\n", pci_name);
	fd = p2p_open(path, O_RDONLY);
	if (fd < 0)
		return false;
	if (read(fd, text + 1, sizeof(text) - 2) < 0)
		text[0] = '\0';
	close(fd);
	return strstr(text, want);
}

int p2p_render_open_node(int node, const char *driver, const char *pci_name)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/dev/dri/renderD%d", node);
	fd = p2p_open(path, O_RDWR);
	if (fd == -ENOENT || fd == -ENXIO)
		return -ENODEV;
	if (fd < 0)
		return fd;
	if (is_driver(fd, driver) && (!pci_name || is_device(node, pci_name)))
		return fd;
	close(fd);
	return -ENODEV;
}

int p2p_render_open(const char *driver, const char *pci_name)
{
	int node, fd, ret = -ENODEV;

	for (node = P2P_RENDER_FIRST; node <= P2P_RENDER_LAST; node++) {
		fd = p2p_render_open_node(node, driver, pci_name);
		if (fd >= 0)
			return fd;
		if (fd != -ENODEV)
			ret = fd;
	}
	return ret;
}
