#include "utils/pci_plan.h"

double ut_pci_plan_bus_factor(unsigned nodes)
{
    return nodes ? 2.0 * (nodes - 1) / nodes : 0;
}

double ut_pci_plan_ring_bytes(unsigned nodes, double bytes)
{
    return ut_pci_plan_bus_factor(nodes) * bytes;
}

double ut_pci_plan_ms(double bytes, double gbytes)
{
    return bytes / gbytes / 1e6;
}

uint64_t ut_pci_plan_mesh_cables(unsigned nodes)
{
    return nodes ? (uint64_t)nodes * (nodes - 1) / 2 : 0;
}

double ut_pci_plan_speedup(unsigned devices, double compute_ms, double sync_ms)
{
    return devices * compute_ms / (compute_ms + sync_ms);
}
