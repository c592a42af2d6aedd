// SPDX-License-Identifier: GPL-2.0
#include "nouveau.h"

#include "../p2p_drm.h"
#include "../p2ptest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <drm/drm.h>
#include <drm/nouveau_drm.h>

/* Bytes from NOUVEAU_UNMANAGED_ADDR on */
#define UNMANAGED_SIZE	0x10000000000ULL

/* BAR1, which has 64 bits, comes after BAR0, which has 32 */
#define BAR1	1

int nouveau_svm_init(int fd)
{
	struct drm_nouveau_svm_init args = {
		.unmanaged_addr = NOUVEAU_UNMANAGED_ADDR,
		.unmanaged_size = UNMANAGED_SIZE,
	};

	return p2p_ioctl(fd, DRM_IOCTL_NOUVEAU_SVM_INIT, &args);
}

int nouveau_open(void)
{
	int node, fd;

	for (node = P2P_RENDER_FIRST; node <= P2P_RENDER_LAST; node++) {
		fd = p2p_render_open_node(node, "nouveau", NULL);
		if (fd < 0)
			continue;
		if (!nouveau_svm_init(fd))
			return fd;
		/* The file is new: only a GPU or a kernel without SVM refuses it */
		close(fd);
	}
	return -ENODEV;
}

int nouveau_open_again(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return p2p_open(path, O_RDWR);
}

int nouveau_pci_name(int fd, char name[P2P_PCI_NAME])
{
	char path[64];
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/device",
		 major(st.st_rdev), minor(st.st_rdev));
	return p2p_pci_name_of(path, name);
}

int nouveau_to_vram(int fd, void *addr, size_t len)
{
	struct drm_nouveau_svm_bind args = {
		.header = (__u64)NOUVEAU_SVM_BIND_COMMAND__MIGRATE <<
				  NOUVEAU_SVM_BIND_COMMAND_SHIFT |
			  (__u64)NOUVEAU_SVM_BIND_TARGET__GPU_VRAM <<
				  NOUVEAU_SVM_BIND_TARGET_SHIFT,
		.va_start = (uintptr_t)addr,
		.va_end = (uintptr_t)addr + len,
	};

	return p2p_ioctl(fd, DRM_IOCTL_NOUVEAU_SVM_BIND, &args);
}

int nouveau_flush(int fd)
{
	struct drm_nouveau_getparam args = {
		.param = NOUVEAU_GETPARAM_PTIMER_TIME,
	};

	return p2p_ioctl(fd, DRM_IOCTL_NOUVEAU_GETPARAM, &args);
}

long nouveau_bar1(int fd)
{
	char name[P2P_PCI_NAME];
	__u64 start, end;
	int ret = nouveau_pci_name(fd, name);

	ret = ret ?: p2p_pci_bar(name, BAR1, &start, &end);
	return ret ? ret : (long)(end - start);
}

long nouveau_vram_used(int fd)
{
	struct drm_nouveau_getparam args = {
		.param = NOUVEAU_GETPARAM_VRAM_USED,
	};

	int ret = p2p_ioctl(fd, DRM_IOCTL_NOUVEAU_GETPARAM, &args);

	return ret ? ret : (long)args.value;
}

void *nouveau_gem_map(int fd, size_t len)
{
	struct drm_nouveau_gem_new args = {
		.info.domain = NOUVEAU_GEM_DOMAIN_VRAM |
			       NOUVEAU_GEM_DOMAIN_MAPPABLE,
		.info.size = len,
	};
	void *p;

	if (p2p_ioctl(fd, DRM_IOCTL_NOUVEAU_GEM_NEW, &args))
		return NULL;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		 args.info.map_handle);
	return p == MAP_FAILED ? NULL : p;
}

long nouveau_gem_new(int fd, size_t len)
{
	struct drm_nouveau_gem_new args = {
		.info.domain = NOUVEAU_GEM_DOMAIN_VRAM,
		.info.size = len,
	};

	int ret = p2p_ioctl(fd, DRM_IOCTL_NOUVEAU_GEM_NEW, &args);

	return ret ? ret : (long)args.info.handle;
}

void nouveau_gem_close(int fd, long handle)
{
	struct drm_gem_close args = { .handle = handle };

	p2p_ioctl(fd, DRM_IOCTL_GEM_CLOSE, &args);
}
