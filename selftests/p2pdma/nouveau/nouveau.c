// SPDX-License-Identifier: GPL-2.0
#include "nouveau.h"

#include "../p2ptest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <drm/drm.h>
#include <drm/nouveau_drm.h>

/* Numbers of render nodes: include/drm/drm_file.h */
#define FIRST_NODE	128
#define LAST_NODE	191

/* Bytes from NOUVEAU_UNMANAGED_ADDR on */
#define UNMANAGED_SIZE	0x10000000000ULL

/* BAR1, which has 64 bits, comes after BAR0, which has 32 */
#define BAR1	1

/* Bit 62 of an entry: Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_SWAPPED	0x4000000000000000ULL

static bool is_nouveau(int fd)
{
	char name[16] = "";
	struct drm_version version = {
		.name = name,
		.name_len = sizeof(name) - 1,
	};

	return !ioctl(fd, DRM_IOCTL_VERSION, &version) &&
	       !strcmp(name, "nouveau");
}

int nouveau_open_without_svm(void)
{
	char path[32];
	int i, fd;

	for (i = FIRST_NODE; i <= LAST_NODE; i++) {
		snprintf(path, sizeof(path), "/dev/dri/renderD%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (is_nouveau(fd))
			return fd;
		close(fd);
	}
	return -ENODEV;
}

int nouveau_svm_init(int fd)
{
	struct drm_nouveau_svm_init args = {
		.unmanaged_addr = NOUVEAU_UNMANAGED_ADDR,
		.unmanaged_size = UNMANAGED_SIZE,
	};

	return ioctl(fd, DRM_IOCTL_NOUVEAU_SVM_INIT, &args) ? -errno : 0;
}

int nouveau_open(void)
{
	int fd = nouveau_open_without_svm();
	int ret;

	if (fd < 0)
		return fd;
	ret = nouveau_svm_init(fd);
	if (ret) {
		close(fd);
		return ret;
	}
	return fd;
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

	return ioctl(fd, DRM_IOCTL_NOUVEAU_SVM_BIND, &args) ? -errno : 0;
}

int nouveau_flush(int fd)
{
	struct drm_nouveau_getparam args = {
		.param = NOUVEAU_GETPARAM_PTIMER_TIME,
	};

	return ioctl(fd, DRM_IOCTL_NOUVEAU_GETPARAM, &args) ? -errno : 0;
}

long nouveau_resident(const void *addr, size_t len)
{
	size_t pages = len / P2P_PAGE, size = pages * sizeof(__u64), i;
	off_t pos = (uintptr_t)addr / P2P_PAGE * sizeof(__u64);
	__u64 *entries = malloc(size);
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	long count = 0;

	if (!entries || fd < 0 ||
	    pread(fd, entries, size, pos) != (ssize_t)size) {
		count = -EIO;
	} else {
		for (i = 0; i < pages; i++)
			count += !!(entries[i] & PAGEMAP_SWAPPED);
	}
	if (fd >= 0)
		close(fd);
	free(entries);
	return count;
}

long nouveau_bar1(int fd)
{
	char path[64], link[256];
	__u64 start, end;
	struct stat st;
	ssize_t len;
	int ret;

	if (fstat(fd, &st))
		return -errno;
	snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/device",
		 major(st.st_rdev), minor(st.st_rdev));
	len = readlink(path, link, sizeof(link) - 1);
	if (len < 0)
		return -errno;
	link[len] = '\0';
	ret = p2p_pci_bar(strrchr(link, '/') + 1, BAR1, &start, &end);
	return ret ? ret : (long)(end - start);
}

long nouveau_vram_used(int fd)
{
	struct drm_nouveau_getparam args = {
		.param = NOUVEAU_GETPARAM_VRAM_USED,
	};

	return ioctl(fd, DRM_IOCTL_NOUVEAU_GETPARAM, &args) ?
		       -errno : (long)args.value;
}

void *nouveau_gem_map(int fd, size_t len)
{
	struct drm_nouveau_gem_new args = {
		.info.domain = NOUVEAU_GEM_DOMAIN_VRAM |
			       NOUVEAU_GEM_DOMAIN_MAPPABLE,
		.info.size = len,
	};
	void *p;

	if (ioctl(fd, DRM_IOCTL_NOUVEAU_GEM_NEW, &args))
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

	return ioctl(fd, DRM_IOCTL_NOUVEAU_GEM_NEW, &args) ?
		       -errno : (long)args.info.handle;
}

void nouveau_gem_close(int fd, long handle)
{
	struct drm_gem_close args = { .handle = handle };

	ioctl(fd, DRM_IOCTL_GEM_CLOSE, &args);
}
