/*
 * The faults of an emulated link as words: "none", or some of "lost stuck ones drop=N flip=N garble=N
 * reorder=N".
 */
#include "ntbmem/ntbm_emu.h"
#include "utils/ut_num.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PERMILLE 1000u
#define REORDER_MAX_NS 1000000000u

/* The number behind "key=". False when the word is another one, or the number is none or too large. */
static bool take_number(const char *word, const char *key, uint64_t max, uint64_t *out)
{
    size_t len = strlen(key);
    return strncmp(word, key, len) == 0 && ut_num_u64(word + len, max, out) == 0;
}

static bool take_word(const char *word, struct ntbm_emu_faults *faults)
{
    uint64_t number;
    if (strcmp(word, "lost") == 0)
        faults->lost = true;
    else if (strcmp(word, "stuck") == 0)
        faults->stuck = true;
    else if (strcmp(word, "ones") == 0)
        faults->all_ones = true;
    else if (take_number(word, "drop=", PERMILLE, &number))
        faults->drop_permille = (uint32_t)number;
    else if (take_number(word, "flip=", PERMILLE, &number))
        faults->flip_permille = (uint32_t)number;
    else if (take_number(word, "garble=", PERMILLE, &number))
        faults->garble_permille = (uint32_t)number;
    else if (take_number(word, "reorder=", REORDER_MAX_NS, &number))
        faults->reorder_ns = number;
    else
        return strcmp(word, "none") == 0;
    return true;
}

int ntbm_emu_faults_parse(const char *text, size_t len, struct ntbm_emu_faults *out, struct ut_err *err)
{
    struct ntbm_emu_faults faults = {0};
    char line[128], *rest = line;
    if (len >= sizeof(line) || memchr(text, '\0', len))
        return ut_err_set(err, -EINVAL, "faults are one line of words");
    memcpy(line, text, len);
    line[len] = '\0';
    for (char *word; (word = strsep(&rest, " \n"));) {
        if (*word && !take_word(word, &faults))
            return ut_err_set(err, -EINVAL,
                              "fault \"%s\" is none of: none lost stuck ones drop=PERMILLE flip=PERMILLE "
                              "garble=PERMILLE reorder=NS",
                              word);
    }
    *out = faults;
    return 0;
}

void ntbm_emu_faults_show(const struct ntbm_emu_faults *faults, char *out, size_t len)
{
    char drop[24] = "", flip[24] = "", garble[24] = "", reorder[40] = "";
    if (faults->drop_permille)
        snprintf(drop, sizeof(drop), " drop=%" PRIu32, faults->drop_permille);
    if (faults->flip_permille)
        snprintf(flip, sizeof(flip), " flip=%" PRIu32, faults->flip_permille);
    if (faults->garble_permille)
        snprintf(garble, sizeof(garble), " garble=%" PRIu32, faults->garble_permille);
    if (faults->reorder_ns)
        snprintf(reorder, sizeof(reorder), " reorder=%" PRIu64, faults->reorder_ns);
    char words[128];
    snprintf(words, sizeof(words), "%s%s%s%s%s%s%s", faults->lost ? " lost" : "",
             faults->stuck ? " stuck" : "", faults->all_ones ? " ones" : "", drop, flip, garble, reorder);
    snprintf(out, len, "%s", *words ? words + 1 : "none");
}
