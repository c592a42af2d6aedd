// SPDX-License-Identifier: GPL-2.0
/*
 * The plug-in of amdkfd: shared virtual memory by /dev/kfd, which needs the GPU's
 * render node, too
 *
 * A process has one address space for each GPU, and keeps it: another file of
 * the same render node is refused. A child has to open the GPU for itself.
 */
#include "gpu.h"
#include "../p2p_drm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/kfd_ioctl.h>
#include <linux/kfd_sysfs.h>

#define NODES		"/sys/class/kfd/kfd/topology/nodes"
#define MAX_NODES	256

static void amdkfd_close(struct gpu *gpu)
{
	if (gpu->fd >= 0)
		close(gpu->fd);
	if (gpu->kfd.fd >= 0)
		close(gpu->kfd.fd);
	gpu->fd = -1;
	gpu->kfd.fd = -1;
}

/* A file of a node of the topology, as one text */
static int node_file(int node, const char *name, char *text, size_t size)
{
	char path[80];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), NODES "/%d/%s", node, name);
	fd = p2p_open(path, O_RDONLY);
	if (fd < 0)
		return fd;
	n = read(fd, text, size - 1);
	text[n < 0 ? 0 : n] = '\0';
	n = n < 0 ? -errno : 0;
	close(fd);
	return n;
}

/* The value in a line "name value" */
static unsigned long property(const char *text, const char *name)
{
	size_t len = strlen(name);

	for (; text; text = strchr(text, '\n')) {
		text += *text == '\n';
		if (!strncmp(text, name, len) && text[len] == ' ')
			return strtoul(text + len, NULL, 10);
	}
	return 0;
}

/* Opens the render node of the GPU that is this node of the topology */
static int open_node(struct gpu *gpu, int node, const char *pci_name)
{
	char text[4096];
	int ret;

	ret = node_file(node, "properties", text, sizeof(text));
	if (ret)
		return gpu_failed(gpu, ret, NODES "/*/properties");
	gpu->fd = p2p_render_open_node(property(text, "drm_render_minor"),
				       "amdgpu", pci_name);
	if (gpu->fd == -ENODEV)
		return gpu_absent(gpu, "no render node of its own");
	if (gpu->fd < 0)
		return gpu_failed(gpu, gpu->fd, "its render node");
	if (property(text, "capability") & HSA_CAP_SVMAPI_SUPPORTED)
		return 0;
	close(gpu->fd);
	gpu->fd = -1;
	return gpu_absent(gpu, "the GPU or the kernel has no SVM");
}

/* Opens the first one that will do, or says what is wrong with the last one */
static int find(struct gpu *gpu, const char *pci_name)
{
	int node, err, ret = gpu_absent(gpu, "no GPU in " NODES);
	char id[16];

	for (node = 0; node < MAX_NODES; node++) {
		err = node_file(node, "gpu_id", id, sizeof(id));
		if (err == -ENOENT)
			break;
		if (err) {
			ret = gpu_failed(gpu, err, NODES "/*/gpu_id");
			continue;
		}
		gpu->kfd.id = strtoul(id, NULL, 10);
		if (!gpu->kfd.id)
			continue;	/* a CPU */
		ret = open_node(gpu, node, pci_name);
		if (!ret)
			break;
	}
	return ret;
}

static int amdkfd_open(struct gpu *gpu, const char *pci_name)
{
	struct kfd_ioctl_acquire_vm_args args;
	int ret;

	gpu->kfd.fd = p2p_open("/dev/kfd", O_RDWR);
	if (gpu->kfd.fd < 0)
		return gpu_not_opened(gpu, gpu->kfd.fd, "/dev/kfd");
	ret = find(gpu, pci_name);
	if (!ret) {
		args = (struct kfd_ioctl_acquire_vm_args){
			.drm_fd = gpu->fd,
			.gpu_id = gpu->kfd.id,
		};
		ret = gpu_ioctl(gpu, gpu->kfd.fd, AMDKFD_IOC_ACQUIRE_VM, &args,
				"AMDKFD_IOC_ACQUIRE_VM");
	}
	if (ret)
		amdkfd_close(gpu);
	return ret;
}

/* The size in the ioctl's number includes the attributes */
static int amdkfd_to_gpu(struct gpu *gpu, void *addr, size_t len)
{
	union {
		struct kfd_ioctl_svm_args args;
		char room[sizeof(struct kfd_ioctl_svm_args) +
			  sizeof(struct kfd_ioctl_svm_attribute)];
	} svm = { .args = {
		.start_addr = (uintptr_t)addr,
		.size = len,
		.op = KFD_IOCTL_SVM_OP_SET_ATTR,
		.nattr = 1,
	} };
	const unsigned long cmd = _IOC(_IOC_READ | _IOC_WRITE,
				       AMDKFD_IOCTL_BASE,
				       _IOC_NR(AMDKFD_IOC_SVM), sizeof(svm));

	svm.args.attrs[0].type = KFD_IOCTL_SVM_ATTR_PREFETCH_LOC;
	svm.args.attrs[0].value = gpu->kfd.id;
	return gpu_ioctl(gpu, gpu->kfd.fd, cmd, &svm, "AMDKFD_IOC_SVM");
}

const struct gpu_ops amdkfd_gpu_ops = {
	.driver = "amdkfd",
	.open = amdkfd_open,
	.close = amdkfd_close,
	.to_gpu = amdkfd_to_gpu,
};
