// SPDX-License-Identifier: GPL-2.0
/*
 * See fake.h
 */
#define _GNU_SOURCE
#include "fake.h"
#include "../nouveau/nouveau.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <drm/drm.h>
#include <drm/nouveau_drm.h>
#include <drm/xe_drm.h>
#include <linux/kfd_ioctl.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define MAX_FDS		256
#define MAX_MOVES	64
#define SWAPPED		0x4000000000000000ULL

#define VRAM_SIZE	(16ULL << 20)
#define VA_BITS		48
#define VM_ID		7
#define OBJECT		5
#define VRAM_REGION	1

struct fake fake;

static const struct fake_file *opened[MAX_FDS];

/* By file, and lost with the file; only amdkfd keeps it */
static bool ready[MAX_FDS];

static struct {
	__u64 start;
	__u64 end;
} moved[MAX_MOVES];
static unsigned int moves;

/* What a driver would refuse */
static void complain(const char *what)
{
	if (!fake.complaint)
		fake.complaint = what;
}

static bool need(bool cond, const char *text)
{
	if (!cond)
		complain(text);
	return cond;
}

#define NEED(cond) need(cond, #cond)

static int move(int fd, __u64 start, __u64 len)
{
	if (!NEED(start && len) ||
	    !NEED(!(start % P2P_PAGE) && !(len % P2P_PAGE)) ||
	    !NEED(moves < MAX_MOVES))
		return -EINVAL;
	moved[moves].start = start;
	moved[moves++].end = start + len;
	fake.used = opened[fd]->path;
	return 0;
}

static bool is_moved(__u64 addr)
{
	unsigned int i;

	for (i = 0; i < moves; i++) {
		if (addr >= moved[i].start && addr < moved[i].end)
			return true;
	}
	return false;
}

/* Test GPU */

static int p2ptest_ioctl(int fd, unsigned long cmd, void *arg)
{
	struct p2ptest_gpu_migrate *migrate = arg;
	struct p2ptest_gpu_lookup *lookup = arg;
	struct p2ptest_gpu_window *window = arg;
	struct p2ptest_gpu_info *info = arg;
	__u64 pos, *locs;

	switch (cmd) {
	case P2PTEST_GPU_INFO:
		*info = (struct p2ptest_gpu_info){ .vram_size = VRAM_SIZE };
		return 0;
	case P2PTEST_GPU_WINDOW:
		if (!NEED(!window->start && window->size == VRAM_SIZE))
			return -EINVAL;
		ready[fd] = true;
		return 0;
	case P2PTEST_GPU_MIGRATE:
		if (!NEED(ready[fd]) ||
		    !NEED(migrate->dir == P2PTEST_GPU_TO_VRAM && !migrate->pad))
			return -EINVAL;
		migrate->pages = migrate->len / P2P_PAGE;
		return move(fd, migrate->addr, migrate->len);
	case P2PTEST_GPU_LOOKUP:
		locs = (__u64 *)(uintptr_t)lookup->locs;
		for (pos = 0; pos < lookup->len; pos += P2P_PAGE)
			*locs++ = is_moved(lookup->addr + pos) ?
					  pos : P2PTEST_LOC_HOST;
		return 0;
	default:
		return -ENOTTY;
	}
}

/* All that is drm */

static int version(int fd, struct drm_version *args)
{
	size_t len = strlen(opened[fd]->driver);

	if (args->name)
		memcpy(args->name, opened[fd]->driver,
		       len < args->name_len ? len : args->name_len);
	args->name_len = len;
	args->date_len = 0;
	args->desc_len = 0;
	return 0;
}

/* nouveau_svmm_bind() */
static int nouveau_bind(int fd, const struct drm_nouveau_svm_bind *args)
{
	__u64 command = args->header >> NOUVEAU_SVM_BIND_COMMAND_SHIFT &
			NOUVEAU_SVM_BIND_COMMAND_MASK;
	__u64 target = args->header >> NOUVEAU_SVM_BIND_TARGET_SHIFT &
		       NOUVEAU_SVM_BIND_TARGET_MASK;

	if (!NEED(!args->reserved0 && !args->reserved1 && !args->stride) ||
	    !NEED(!(args->header & ~NOUVEAU_SVM_BIND_VALID_MASK)) ||
	    !NEED(command == NOUVEAU_SVM_BIND_COMMAND__MIGRATE) ||
	    !NEED(target == NOUVEAU_SVM_BIND_TARGET__GPU_VRAM) ||
	    !NEED(args->va_start < args->va_end) ||
	    !NEED(ready[fd]))
		return -EINVAL;
	return move(fd, args->va_start, args->va_end - args->va_start);
}

static int nouveau_ioctl(int fd, unsigned long cmd, void *arg)
{
	struct drm_nouveau_svm_init *init = arg;

	switch (cmd) {
	case DRM_IOCTL_NOUVEAU_SVM_INIT:
		if (ready[fd])
			return -EBUSY;
		if (!NEED(init->unmanaged_addr == NOUVEAU_UNMANAGED_ADDR) ||
		    !NEED(init->unmanaged_size))
			return -EINVAL;
		ready[fd] = true;
		return 0;
	case DRM_IOCTL_NOUVEAU_SVM_BIND:
		return nouveau_bind(fd, arg);
	default:
		return -ENOTTY;
	}
}

/* kfd_ioctl(): the caller gives the size, and attributes follow */
static int kfd_ioctl(int fd, unsigned long cmd, void *arg)
{
	struct kfd_ioctl_acquire_vm_args *acquire = arg;
	struct kfd_ioctl_svm_args *svm = arg;
	static int drm_fd;

	if (cmd == AMDKFD_IOC_ACQUIRE_VM) {
		if (!NEED(acquire->drm_fd < MAX_FDS && opened[acquire->drm_fd]) ||
		    !NEED(!strcmp(opened[acquire->drm_fd]->driver, "amdgpu")) ||
		    !NEED(opened[acquire->drm_fd]->gpu_id == acquire->gpu_id))
			return -EINVAL;
		drm_fd = acquire->drm_fd;
		ready[fd] = true;
		return 0;
	}
	if (_IOC_TYPE(cmd) != AMDKFD_IOCTL_BASE ||
	    _IOC_NR(cmd) != _IOC_NR(AMDKFD_IOC_SVM))
		return -ENOTTY;
	if (!NEED(_IOC_DIR(cmd) == (_IOC_READ | _IOC_WRITE)) ||
	    !NEED(ready[fd]) ||
	    !NEED(svm->op == KFD_IOCTL_SVM_OP_SET_ATTR) ||
	    !NEED(svm->nattr == 1) ||
	    !NEED(_IOC_SIZE(cmd) == sizeof(*svm) + sizeof(svm->attrs[0])) ||
	    !NEED(svm->attrs[0].type == KFD_IOCTL_SVM_ATTR_PREFETCH_LOC) ||
	    !NEED(svm->attrs[0].value == opened[drm_fd]->gpu_id))
		return -EINVAL;
	return move(drm_fd, svm->start_addr, svm->size);
}

/* xe_query_ioctl() */
static int xe_query(struct drm_xe_device_query *args)
{
	__u64 room[64] = {};
	struct drm_xe_query_mem_regions *regions = (void *)room;
	struct drm_xe_query_config *config = (void *)room;
	__u32 size;

	if (!NEED(!args->extensions && !args->reserved[0] && !args->reserved[1]))
		return -EINVAL;
	if (args->query == DRM_XE_DEVICE_QUERY_MEM_REGIONS) {
		regions->num_mem_regions = fake.xe_regions;
		regions->mem_regions[VRAM_REGION].mem_class =
			DRM_XE_MEM_REGION_CLASS_VRAM;
		regions->mem_regions[VRAM_REGION].instance = VRAM_REGION;
		size = sizeof(*regions) +
		       fake.xe_regions * sizeof(regions->mem_regions[0]);
	} else {
		if (!NEED(args->query == DRM_XE_DEVICE_QUERY_CONFIG))
			return -EINVAL;
		config->num_params =
			DRM_XE_QUERY_CONFIG_MAX_EXEC_QUEUE_PRIORITY + 1;
		config->info[DRM_XE_QUERY_CONFIG_FLAGS] = fake.xe_flags;
		config->info[DRM_XE_QUERY_CONFIG_VA_BITS] = VA_BITS;
		size = sizeof(*config) +
		       config->num_params * sizeof(config->info[0]);
	}
	size -= fake.xe_short;
	if (!args->size) {
		args->size = size;
		return 0;
	}
	if (!NEED(args->size == size))
		return -EINVAL;
	memcpy((void *)(uintptr_t)args->data, room, size);
	return 0;
}

/* vm_bind_ioctl_check_args() */
static int xe_bind(int fd, const struct drm_xe_vm_bind *args)
{
	const struct drm_xe_vm_bind_op *op = &args->bind;

	if (!NEED(!args->extensions && !args->pad && !args->pad2) ||
	    !NEED(!args->reserved[0] && !args->reserved[1]) ||
	    !NEED(args->vm_id == VM_ID && !args->exec_queue_id) ||
	    !NEED(args->num_binds == 1 && !args->num_syncs) ||
	    !NEED(!op->extensions && !op->pad && !op->pad2) ||
	    !NEED(!op->reserved[0] && !op->reserved[1] && !op->reserved[2]) ||
	    !NEED(!op->obj && !op->obj_offset && !op->pat_index) ||
	    !NEED(op->range && !(op->range % P2P_PAGE) && !(op->addr % P2P_PAGE)) ||
	    !NEED(op->range <= 1ULL << VA_BITS) ||
	    !NEED(op->addr <= (1ULL << VA_BITS) - op->range))
		return -EINVAL;
	if (op->op == DRM_XE_VM_BIND_OP_MAP) {
		if (!NEED(op->flags == DRM_XE_VM_BIND_FLAG_CPU_ADDR_MIRROR) ||
		    !NEED(!op->prefetch_mem_region_instance) ||
		    !NEED(op->range == 1ULL << VA_BITS))
			return -EINVAL;
		ready[fd] = true;
		return 0;
	}
	if (!NEED(op->op == DRM_XE_VM_BIND_OP_PREFETCH && !op->flags) ||
	    !NEED(op->prefetch_mem_region_instance == VRAM_REGION) ||
	    !NEED(ready[fd]))
		return -EINVAL;
	return move(fd, op->addr, op->range);
}

/* xe_gem_create_ioctl(), for memory that peers reach */
static int xe_create(struct drm_xe_gem_create *args)
{
	if (!NEED(!args->extensions && !args->vm_id && !args->handle) ||
	    !NEED(!args->pad[0] && !args->pad[1] && !args->pad[2]) ||
	    !NEED(!args->reserved[0] && !args->reserved[1]) ||
	    !NEED(args->size && !(args->size % P2P_PAGE)) ||
	    !NEED(args->placement == 1U << VRAM_REGION) ||
	    !NEED(args->flags == DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM) ||
	    !NEED(args->cpu_caching == DRM_XE_GEM_CPU_CACHING_WC))
		return -EINVAL;
	args->handle = OBJECT;
	fake.objects++;
	return 0;
}

/* drm_prime_handle_to_fd_ioctl(): one that can be written */
static int xe_export(struct drm_prime_handle *args)
{
	if (!NEED(args->flags == (DRM_CLOEXEC | DRM_RDWR)) ||
	    !NEED(args->handle == OBJECT))
		return -EINVAL;
	args->fd = memfd_create("fake", MFD_CLOEXEC);
	return 0;
}

static int xe_ioctl(int fd, unsigned long cmd, void *arg)
{
	const __u32 flags = DRM_XE_VM_CREATE_FLAG_LR_MODE |
			    DRM_XE_VM_CREATE_FLAG_FAULT_MODE;
	struct drm_xe_vm_create *create = arg;
	struct drm_gem_close *gem = arg;

	switch (cmd) {
	case DRM_IOCTL_XE_GEM_CREATE:
		return xe_create(arg);
	case DRM_IOCTL_PRIME_HANDLE_TO_FD:
		return xe_export(arg);
	case DRM_IOCTL_GEM_CLOSE:
		if (!NEED(gem->handle == OBJECT && !gem->pad))
			return -EINVAL;
		fake.objects--;
		return 0;
	case DRM_IOCTL_XE_DEVICE_QUERY:
		return xe_query(arg);
	case DRM_IOCTL_XE_VM_CREATE:
		if (!NEED(!create->extensions) ||
		    !NEED(!create->reserved[0] && !create->reserved[1]) ||
		    !NEED(create->flags == flags))
			return -EINVAL;
		create->vm_id = VM_ID;
		return 0;
	case DRM_IOCTL_XE_VM_BIND:
		return xe_bind(fd, arg);
	default:
		return -ENOTTY;
	}
}

static int amdgpu_ioctl(int fd, unsigned long cmd, void *arg)
{
	(void)fd;
	(void)cmd;
	(void)arg;
	return -ENOTTY;
}

static const struct {
	const char *driver;
	int (*ioctl)(int fd, unsigned long cmd, void *arg);
} devices[] = {
	{ "p2ptest", p2ptest_ioctl },
	{ "nouveau", nouveau_ioctl },
	{ "amdgpu", amdgpu_ioctl },
	{ "kfd", kfd_ioctl },
	{ "xe", xe_ioctl },
};

/* Is this call, of an ioctl or to open a file, one that has to fail? */
static bool fails(unsigned long cmd, const char *path)
{
	fake.calls++;
	if (!fake.fail_at || fake.calls < fake.fail_at ||
	    fake.calls - fake.fail_at >= fake.fail_calls)
		return false;
	fake.failed = cmd;
	fake.not_opened = path;
	errno = fake.fail_errno;
	return true;
}

static int fake_ioctl(int fd, unsigned long cmd, void *arg)
{
	const char *driver;
	int ret = -EBADF;
	size_t i;

	if (fails(cmd, NULL))
		return -1;
	if (fd < 0 || fd >= MAX_FDS || !opened[fd] || !opened[fd]->driver) {
		errno = EBADF;
		return -1;
	}
	driver = opened[fd]->driver;
	if (cmd == DRM_IOCTL_VERSION) {
		ret = version(fd, arg);
	} else {
		for (i = 0; i < ARRAY_SIZE(devices); i++) {
			if (!strcmp(devices[i].driver, driver))
				ret = devices[i].ioctl(fd, cmd, arg);
		}
	}
	if (ret) {
		errno = -ret;
		return -1;
	}
	return 0;
}

static const struct fake_file pagemap = { .path = "/proc/self/pagemap" };

static const struct fake_file *find(const char *path)
{
	const struct fake_file *file;

	if (!strcmp(path, pagemap.path))
		return &pagemap;
	for (file = fake.files; file->path; file++) {
		if (!strcmp(path, file->path))
			return file;
	}
	return NULL;
}

/* Entries of what moved; all others are holes, so nothing is there */
static void write_pagemap(int fd)
{
	const __u64 entry = SWAPPED;
	unsigned int i;
	__u64 addr;

	for (i = 0; i < moves; i++) {
		for (addr = moved[i].start; addr < moved[i].end;
		     addr += P2P_PAGE)
			if (pwrite(fd, &entry, sizeof(entry),
				   addr / P2P_PAGE * sizeof(entry)) < 0)
				abort();
	}
	if (ftruncate(fd, (1ULL << VA_BITS) / P2P_PAGE * sizeof(entry)))
		abort();
}

static int fake_open(const char *path, int flags)
{
	const struct fake_file *file = find(path);
	int fd;

	if (!file) {
		errno = ENOENT;
		return -1;
	}
	if (fails(0, file->path))
		return -1;
	if (!(flags & O_CLOEXEC))
		complain("a child would keep the file open");
	if (!file->driver != !(flags & O_RDWR))
		complain("devices are opened to be written, and nothing else");
	fd = memfd_create("fake", MFD_CLOEXEC);
	if (fd < 0 || fd >= MAX_FDS)
		abort();
	if (file == &pagemap)
		write_pagemap(fd);
	else if (file->text && write(fd, file->text, strlen(file->text)) < 0)
		abort();
	lseek(fd, 0, SEEK_SET);
	opened[fd] = file;
	ready[fd] = false;
	return fd;
}

void fake_start(const struct fake_file *files)
{
	fake = (struct fake){
		.files = files,
		.xe_flags = DRM_XE_QUERY_CONFIG_FLAG_HAS_VRAM |
			    DRM_XE_QUERY_CONFIG_FLAG_HAS_CPU_ADDR_MIRROR,
		.xe_regions = VRAM_REGION + 1,
	};
	moves = 0;
	p2p_sys = (struct p2p_sys){ .open = fake_open, .ioctl = fake_ioctl };
}
