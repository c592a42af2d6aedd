/* SPDX-License-Identifier: GPL-2.0 */
/*
 * nouveau.h - shared virtual memory of nouveau, by its ioctls
 *
 * Functions return 0 or a count if they succeed and a negative errno if they
 * fail.
 */
#ifndef NOUVEAU_H
#define NOUVEAU_H

#include "../p2ptest.h"

/*
 * What the GPU may use for buffers of its own, and nouveau does not map memory of
 * the process in: an address range that the kernel gives to nobody unasked.
 */
#define NOUVEAU_UNMANAGED_ADDR	0x400000000000ULL

/* The first GPU of nouveau's that the process can move memory to, or -ENODEV */
int nouveau_open(void);
/* The GPU of @fd once more, and memory can not be moved yet */
int nouveau_open_again(int fd);
/* Its PCI name */
int nouveau_pci_name(int fd, char name[P2P_PCI_NAME]);
int nouveau_svm_init(int fd);
/* Move what can be moved. There is no telling what was */
int nouveau_to_vram(int fd, void *addr, size_t len);
/* There is no telling of which GPU a page is */
static inline long nouveau_resident(const void *addr, size_t len)
{
	return p2p_device_private(addr, len);
}

/*
 * Returns when the GPU has got what the CPU has written to it so far: such writes
 * are posted, and a read of a register does not overtake them.
 */
int nouveau_flush(int fd);

/* Size of BAR1 */
long nouveau_bar1(int fd);
/* Bytes of video memory in use, by everybody */
long nouveau_vram_used(int fd);
/* A buffer in video memory: its handle, for nouveau_gem_close() */
long nouveau_gem_new(int fd, size_t len);
void nouveau_gem_close(int fd, long handle);
/*
 * A buffer in video memory, mapped: its pages are in BAR1 as long as they are
 * mapped, and come there when they are touched. NULL if that fails.
 */
void *nouveau_gem_map(int fd, size_t len);

#endif /* NOUVEAU_H */
