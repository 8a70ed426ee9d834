/*
 * The arithmetic of planning a fabric: how long an allreduce takes over a given link, and how many cables it
 * needs. Pure functions.
 */
#ifndef UT_PCI_PLAN_H
#define UT_PCI_PLAN_H

#include <stdint.h>

/* Bytes that each node sends in a ring allreduce of one buffer: 2 (n-1)/n of it; 0 for one node. */
double ut_pci_plan_ring_bytes(unsigned nodes, double bytes);

/* The factor between algorithm and bus bandwidth of an allreduce, 2 (n-1)/n. */
double ut_pci_plan_bus_factor(unsigned nodes);

/* Milliseconds for bytes at GB/s (10^9 bytes a second). */
double ut_pci_plan_ms(double bytes, double gbytes);

/* Cables between all pairs of nodes, n (n-1)/2; a switch needs one a node. */
uint64_t ut_pci_plan_mesh_cables(unsigned nodes);

/* Speedup of n devices when a step is compute_ms of work and sync_ms of waiting for the others. */
double ut_pci_plan_speedup(unsigned devices, double compute_ms, double sync_ms);

#endif
