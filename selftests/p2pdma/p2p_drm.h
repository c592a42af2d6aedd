/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_drm.h - a GPU by its render node
 */
#ifndef P2P_DRM_H
#define P2P_DRM_H

/* Numbers of render nodes: include/drm/drm_file.h */
#define P2P_RENDER_FIRST	128
#define P2P_RENDER_LAST		191

/*
 * The first render node of a driver, or the node of the PCI device @pci_name if
 * it is not NULL. -ENODEV if there is none; another error if a node that there
 * is cannot be opened, and none of the others is the one.
 */
int p2p_render_open(const char *driver, const char *pci_name);
/* The same of one node, by its number */
int p2p_render_open_node(int node, const char *driver, const char *pci_name);

#endif /* P2P_DRM_H */
