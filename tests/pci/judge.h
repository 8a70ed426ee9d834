/*
 * Everything that reads a snapshot, run on one whatever it holds, with the promises of its headers checked.
 */
#ifndef JUDGE_H
#define JUDGE_H

#include "utils/pci_snap.h"

/* Builds the model, walks every path and pair, renders every view, runs every check; aborts where a promise
 * is broken. Frees the snapshot. */
void judge_snap(struct ut_pci_snap *snap);

#endif
