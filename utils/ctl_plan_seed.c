/*
 * The figures of the two articles this project started from, each beside our own, with the reason where they
 * differ. The articles mix MB (10^6) and MiB (2^20); each claim is computed in the unit that it used.
 */
#include <math.h>

#include "utils/ctl_plan.h"
#include "utils/pci_plan.h"
#include "utils/pci_speed.h"

#define MB 1e6
#define MIB 1048576.0

static double lane_mb(unsigned gen)
{
    return ut_pci_gbytes((struct ut_pci_rate){ut_pci_speed_of_gen(gen), 1}) * 1000;
}

static double x16(unsigned gen)
{
    return ut_pci_gbytes((struct ut_pci_rate){ut_pci_speed_of_gen(gen), 16});
}

int ctl_claim_agrees(const struct ctl_claim *claim)
{
    return fabs(claim->ours - claim->theirs) <= claim->tolerance * claim->theirs;
}

static unsigned bandwidths(struct ctl_claim *out)
{
    double gen3_x8 = ut_pci_gbytes((struct ut_pci_rate){ut_pci_speed_of_gen(3), 8});
    const struct ctl_claim list[] = {
        {"003 table", "PCIe 3.0, one lane", 985, lane_mb(3), "MB/s", 0.001, "8 GT/s x 128/130 / 8"},
        {"003 table", "PCIe 4.0, one lane", 1969, lane_mb(4), "MB/s", 0.001, "16 GT/s x 128/130 / 8"},
        {"003 table", "PCIe 5.0, one lane", 3938, lane_mb(5), "MB/s", 0.001, "32 GT/s x 128/130 / 8"},
        {"003 table", "PCIe 6.0, one lane", 7877, lane_mb(6), "MB/s", 0.001,
         "theirs doubles PCIe 5.0 with its 128/130; PCIe 6.0 sends flits, of whose 256 bytes 236 carry "
         "packets"},
        {"000 2.3", "Gen3 x16", 15.75, x16(3), "GB/s", 0.002, "8 GT/s x 16 x 128/130 / 8"},
        {"000 2.3", "Gen4 x16", 31.5, x16(4), "GB/s", 0.002, "16 GT/s x 16 x 128/130 / 8"},
        {"003 2", "Gen3 x8, the NIC that holds back a Gen4 x16 GPU", 7.88, gen3_x8, "GB/s", 0.002,
         "a quarter of the GPU's 31.5 GB/s: half the generation and half the lanes"},
        {"000 1.1", "10 GbE, theory", 1.25, 10.0 / 8, "GB/s", 0.001, "10 Gb/s / 8"},
        {"000 4.4", "Gen3 x16, in practice", 12, x16(3) * 0.76, "GB/s", 0.01,
         "76 % of 15.75, inside the 70 to 80 % that 000 2.3 states"},
    };
    unsigned count = sizeof list / sizeof list[0];
    for (unsigned i = 0; i < count; i++)
        out[i] = list[i];
    return count;
}

static unsigned times(struct ctl_claim *out)
{
    double reduced = ut_pci_plan_ring_bytes(4, 256 * MB), both = ut_pci_plan_ring_bytes(4, 2 * 256 * MB);
    const struct ctl_claim list[] = {
        {"000 3.2", "512 MB over Gen3 x16", 34, ut_pci_plan_ms(512 * MIB, x16(3)), "ms", 0.01,
         "512 MiB once over the link at the raw rate: no ring factor, no efficiency"},
        {"000 3.2", "512 MB over 10 GbE", 450, ut_pci_plan_ms(512 * MIB, 1.25), "ms", 0.01,
         "theirs lies between 1.25 GB/s in theory (429 ms) and their own 1.1 GB/s in practice (488 ms)"},
        {"000 4.4", "bytes a node sends, 4 nodes, 256 MB", 768, reduced / MB, "MB", 0.01,
         "step 1 has already reduced the node's two cards to one buffer, so the ring sends 2(n-1)/n x 256 = "
         "384 MB"},
        {"000 4.4", "the same, both cards' buffers unreduced", 768, both / MB, "MB", 0.01,
         "2(n-1)/n x 512 MB: this reading reproduces their figure"},
        {"000 4.4", "allreduce of 256 MB, 4 nodes, 12 GB/s", 64, ut_pci_plan_ms(reduced, 12), "ms", 0.01,
         "half of theirs, because half the bytes: 384 MB at 12 GB/s"},
        {"000 4.4", "the same, both cards' buffers unreduced", 64, ut_pci_plan_ms(both, 12), "ms", 0.01,
         "768 MB at 12 GB/s: this reading reproduces their figure; they measured 70 ms"},
        {"000 4.4", "10 GbE takes longer by at least", 400,
         ut_pci_plan_ms(both, 1.1) - ut_pci_plan_ms(both, 12), "ms", 0.6,
         "for 768 MB at 1.1 GB/s, within their \"at least\"; for the 384 MB of one reduced buffer it is 317 "
         "ms"},
    };
    unsigned count = sizeof list / sizeof list[0];
    for (unsigned i = 0; i < count; i++)
        out[i] = list[i];
    return count;
}

static unsigned shapes(struct ctl_claim *out)
{
    const struct ctl_claim list[] = {
        {"000 3.1", "cables point to point, 4 nodes", 6, (double)ut_pci_plan_mesh_cables(4), "", 0,
         "n(n-1)/2"},
        {"000 3.1", "cables point to point, 8 nodes", 28, (double)ut_pci_plan_mesh_cables(8), "", 0,
         "n(n-1)/2"},
        {"000 1.1", "speedup of 8 cards, 250 ms work, 50 ms waiting", 6, ut_pci_plan_speedup(8, 250, 50), "x",
         0.12, "8 x 250 / 300, their \"a little over 6\""},
        {"000 3.2", "Gen4 in place of Gen3 shortens an allreduce to", 0.5, x16(3) / x16(4), "of the time",
         0.001, "the same share of a rate twice as high"},
    };
    unsigned count = sizeof list / sizeof list[0];
    for (unsigned i = 0; i < count; i++)
        out[i] = list[i];
    return count;
}

unsigned ctl_plan_claims(struct ctl_claim out[CTL_CLAIMS])
{
    unsigned count = bandwidths(out);
    count += times(out + count);
    return count + shapes(out + count);
}
