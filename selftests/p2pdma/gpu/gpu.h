/* SPDX-License-Identifier: GPL-2.0 */
/*
 * gpu.h - GPUs whose drivers have device private memory, by one interface
 *
 * Each driver is a plug-in, in a file of its own. It talks to the kernel by the
 * driver's ioctls as include/uapi has them, so that it needs no user space of a
 * GPU. It can move memory. Only the test GPU's plug-in can run anything on the
 * GPU.
 */
#ifndef GPU_H
#define GPU_H

#include "../p2ptest.h"

struct gpu {
	const struct gpu_ops *ops;
	int fd;			/* device node, or render node */
	union {
		struct {
			int fd;		/* /dev/kfd */
			__u32 id;	/* what amdkfd calls the GPU */
		} kfd;
		struct {
			__u32 vm;
			__u32 vram;	/* instance of the memory region */
		} xe;
	};
	char why[512];		/* why the last call failed, in one line */
};

/* Functions return 0 or a count, or a negative errno and say why */
struct gpu_ops {
	const char *driver;
	/*
	 * A GPU of the driver, which is PCI device @pci_name unless that is NULL.
	 * -ENODEV if there is none that can have memory of the process.
	 */
	int (*open)(struct gpu *gpu, const char *pci_name);
	void (*close)(struct gpu *gpu);
	/* Move what can be moved; whether it was is to be seen afterwards */
	int (*to_gpu)(struct gpu *gpu, void *addr, size_t len);
	/* How many pages are in the GPU; NULL: those that are device private */
	long (*resident)(struct gpu *gpu, const void *addr, size_t len);
	/* Memory of the process as the GPU sees it; NULL: cannot be asked */
	int (*read)(struct gpu *gpu, const void *addr, void *buf, size_t len);
	int (*write)(struct gpu *gpu, void *addr, const void *buf, size_t len);
	/* The file of a dma-buf of new memory in the GPU; NULL: has none there */
	int (*dma_buf)(struct gpu *gpu, size_t len);
};

extern const struct gpu_ops p2ptest_gpu_ops;
extern const struct gpu_ops nouveau_gpu_ops;
extern const struct gpu_ops amdkfd_gpu_ops;
extern const struct gpu_ops xe_gpu_ops;

/* All of them, and NULL */
extern const struct gpu_ops *const gpu_drivers[];

/*
 * The GPU that @name says, which is DRIVER or DRIVER@PCI-NAME, such as
 * "xe@0000:03:00.0". If it is NULL or empty, the first one that there is.
 * -EINVAL if no plug-in has that name.
 */
int gpu_open(struct gpu *gpu, const char *name);
void gpu_close(struct gpu *gpu);
int gpu_move(struct gpu *gpu, void *addr, size_t len);
long gpu_resident(struct gpu *gpu, const void *addr, size_t len);

/* For plug-ins: these note why, and return a negative errno */

int gpu_absent(struct gpu *gpu, const char *why);
int gpu_failed(struct gpu *gpu, int ret, const char *what);
/* A device node that could not be opened: there is no such GPU, or it failed */
int gpu_not_opened(struct gpu *gpu, int ret, const char *path);
/* An ioctl, whose name is @what; 0 if it succeeds */
int gpu_ioctl(struct gpu *gpu, int fd, unsigned long cmd, void *arg,
	      const char *what);
/* The driver's render node, for gpu->fd; 0 if there is one */
int gpu_open_render(struct gpu *gpu, const char *pci_name);

#endif /* GPU_H */
